-- To be applied by an engine, by `perdure migrate`, or by hand: sqlite3 FILE < 0003_parked.sql
.bail on
begin immediate;
-- >>> migration
-- Runs that stand still are looked for again and again, and are few among many.
-- works with: 1

create index perdure_runs_parked on perdure_runs (run_id) where status = 'parked';
-- <<< migration
insert into perdure_migrations (number, name, checksum, applied_at) values (
    3, (select '0003_parked' where (select count(*) from perdure_migrations) = 3 - 1),
    '7de89be31ce62f32b4b1c3a7fe93b171ad98d9e213aeea83afd37afc4b621519', (julianday('now') - 2440587.5) * 86400.0);
pragma user_version = 3;
update perdure_migrations set works_with = 1 where number = 3;
pragma application_id = 1885696612;
commit;
