-- Format 1. Every row carries `mark`, a hash of its key and content; `sums` has the sum of the marks of each table.

create table state (
    one integer primary key check (one = 1),
    store_id text not null,
    commits integer not null,
    position integer not null,
    last_seq integer not null,
    last_epoch integer not null,
    last_token integer not null,
    last_fence integer not null,
    last_claim integer not null,
    token integer,
    fence integer,
    who text,
    since real,
    mark integer not null
) strict;

create table sums (
    name text primary key,
    amount integer not null,
    total blob not null
) strict, without rowid;

create table codecs (
    number integer primary key,
    name text not null unique
) strict;

create table epochs (
    number integer primary key,
    name text not null unique,
    state text not null,
    options blob not null,
    cancel integer not null,
    succeeded integer,
    report blob not null,
    completed_at real,
    prune_at real,
    freed integer not null,
    unfinished integer not null,
    letters integer not null,
    first_seq integer,
    mark integer not null
) strict;

create index epochs_to_prune on epochs (prune_at) where prune_at is not null;

create table messages (
    seq integer primary key,
    epoch integer not null,
    id text not null,
    at real not null,
    head blob not null,
    rest blob,
    codec integer not null,
    mark integer not null,
    payload blob not null
) strict;

create unique index messages_by_id on messages (epoch, id);

create table stages (
    first integer primary key,
    last integer not null,
    parent integer not null,
    epoch integer not null,
    state integer not null,
    at real,
    mark integer not null
) strict;

create table staged (
    seq integer primary key,
    parent integer not null,
    epoch integer not null,
    id text not null,
    at real not null,
    head blob not null,
    rest blob,
    codec integer not null,
    mark integer not null,
    payload blob not null
) strict;

create unique index staged_by_parent on staged (parent, id);

create table ends (
    seq integer primary key,
    epoch integer not null,
    end integer not null,
    value blob,
    causes blob,
    letter blob,
    mark integer not null
) strict;

create table progress (
    seq integer primary key,
    run integer not null,
    attempt integer not null,
    crashes integer not null,
    not_before real,
    added blob,
    prepared blob,
    edited_codec integer,
    edited blob,
    mark integer not null
) strict;

create table claims (
    number integer primary key,
    seqs blob not null,
    mark integer not null
) strict;

create table resources (
    scope integer not null,
    name text not null,
    version integer not null,
    value blob,
    mark integer not null,
    primary key (scope, name)
) strict, without rowid;

create table records (
    space text not null,
    key text not null,
    value blob not null,
    mark integer not null,
    primary key (space, key)
) strict, without rowid;

create table pruned (
    epoch integer primary key
) strict;
