-- Format 3. The hash of a commit that left nothing but its place and epoch is one that SQLite itself can count: of a
-- thousand such rows none is built by the program. commit_hash_1 is that hash; hash_1 and sum_1 are those of format 2.

select damaged('the end of the message at place ' || seq) from ends
where mark <> hash_1('ends', seq, epoch, end, value, causes, letter);

update ends set mark = commit_hash_1(seq, epoch)
where end = 0 and value is null and causes is null and letter is null;

insert or replace into sums select 'ends', count(*), sum_1(mark) from ends;
