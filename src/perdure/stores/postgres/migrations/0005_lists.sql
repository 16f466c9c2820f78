-- To be applied by `perdure migrate`, or by hand:
-- PGOPTIONS='-c search_path=SCHEMA' psql -f 0005_lists.sql DATABASE
begin;
select pg_advisory_xact_lock(hashtextextended('perdure migrations', 0));
-- >>> migration
-- Lists by status and by program are read again and again by people, whatever few there are among many; and what there
-- is of each is counted without a look at a row.
-- works with: 1

create index perdure_runs_by_status on perdure_runs (status, run_id);
create index perdure_runs_of_program on perdure_runs (program, run_id);
create index perdure_runs_by_outcome on perdure_runs (status, program, finished_at);
-- One status of those.
drop index perdure_runs_parked;
-- <<< migration
insert into perdure_migrations (number, name, checksum, works_with, applied_at) values (
    5, (select '0005_lists' where (select count(*) from perdure_migrations) = 5 - 1),
    'fbefe3ff1c53e89ef0984ec9782002a6d9f0257636e97cd1ce38aa26d55b6371', 1, extract(epoch from clock_timestamp()));
commit;
