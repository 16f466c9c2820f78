-- To be applied by an engine, by `perdure migrate`, or by hand: sqlite3 FILE < 0007_lists.sql
.bail on
begin immediate;
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
insert into perdure_migrations (number, name, checksum, applied_at) values (
    7, (select '0007_lists' where (select count(*) from perdure_migrations) = 7 - 1),
    'fbefe3ff1c53e89ef0984ec9782002a6d9f0257636e97cd1ce38aa26d55b6371', (julianday('now') - 2440587.5) * 86400.0);
pragma user_version = 7;
update perdure_migrations set works_with = 1 where number = 7;
pragma application_id = 1885696612;
commit;
