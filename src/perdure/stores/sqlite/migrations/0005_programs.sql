-- To be applied by an engine, by `perdure migrate`, or by hand: sqlite3 FILE < 0005_programs.sql
.bail on
begin immediate;
-- >>> migration
-- Which programs have unfinished runs is asked by every engine that starts, however many runs of others there are.
-- works with: 1

create index perdure_runs_by_program on perdure_runs (program) where finished_at is null;
-- <<< migration
insert into perdure_migrations (number, name, checksum, applied_at) values (
    5, (select '0005_programs' where (select count(*) from perdure_migrations) = 5 - 1),
    '0bab98e2843d391648f07e63ef54265b20911a5fb3755b6490d740677a01255b', (julianday('now') - 2440587.5) * 86400.0);
pragma user_version = 5;
update perdure_migrations set works_with = 1 where number = 5;
pragma application_id = 1885696612;
commit;
