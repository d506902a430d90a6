-- Format 2. An epoch has the times at which it was opened and sealed, a copy knows that it is one, ids can be
-- remembered beyond their epoch, and dead letters are found without looking at all ends; in `ends`, 5 is dead and
-- discarded, 6 expired and discarded.
--
-- A file has tables of its user too. So what is new begins with naviscope_, which no user's table does.
--
-- Rows that are written anew are checked first, so that damage does not get a hash that fits. hash_1 is the hash of a row
-- and sum_1 the sum of hashes, as of formats 1 and 2; damaged(…) ends the upgrade.

select damaged('the state row') from state
where mark <> hash_1('state', store_id, commits, position, last_seq, last_epoch, last_token, last_fence, last_claim,
    token, fence, who, since);

create table naviscope_state (
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
    is_copy integer not null,
    mark integer not null
) strict;

insert into naviscope_state
select one, store_id, commits, position, last_seq, last_epoch, last_token, last_fence, last_claim, token, fence, who,
    since, 0, hash_1('state', store_id, commits, position, last_seq, last_epoch, last_token, last_fence, last_claim,
        token, fence, who, since, 0)
from state;

drop table state;
alter table naviscope_state rename to state;

select damaged('epoch ' || number) from epochs
where mark <> hash_1('epochs', number, name, state, options, cancel, succeeded, report, completed_at, prune_at, freed,
    unfinished, letters, first_seq);

create table naviscope_epochs (
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
    opened_at real,
    sealed_at real,
    mark integer not null
) strict;

insert into naviscope_epochs
select number, name, state, options, cancel, succeeded, report, completed_at, prune_at, freed, unfinished, letters,
    first_seq, null, null,
    hash_1('epochs', number, name, state, options, cancel, succeeded, report, completed_at, prune_at, freed,
        unfinished, letters, first_seq, null, null)
from epochs;

drop table epochs;
alter table naviscope_epochs rename to epochs;
create index epochs_to_prune on epochs (prune_at) where prune_at is not null;

insert or replace into sums select 'epochs', count(*), sum_1(mark) from epochs;

create table naviscope_uniques (
    kind text not null,
    id text not null,
    until real not null,
    seq integer not null,
    mark integer not null,
    primary key (kind, id)
) strict, without rowid;

create index naviscope_uniques_to_prune on naviscope_uniques (until);
create index naviscope_uniques_by_seq on naviscope_uniques (seq);

create index naviscope_letters on ends (seq) where end in (1, 4);
create index naviscope_letters_of_epoch on ends (epoch, seq) where end in (1, 4);
