-- Format 3. In `ends`, 5 is dead and discarded, 6 expired and discarded. Dead letters are few among many ends, and are
-- found without looking at the others.

create index naviscope_letters on ends (seq) where end in (1, 4);

create index naviscope_letters_of_epoch on ends (epoch, seq) where end in (1, 4);
