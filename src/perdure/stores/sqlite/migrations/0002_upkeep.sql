-- To be applied by an engine, by `perdure migrate`, or by hand: sqlite3 FILE < 0002_upkeep.sql
.bail on
begin immediate;
-- >>> migration
-- What may go when runs are pruned: which blobs journals refer to, and when each was last put.
-- works with: 1

-- What each migration says about older code.
alter table perdure_migrations add column works_with integer not null default 1;

-- The schema of the code that wrote the entry. From 2 on it notes references with the entry.
alter table perdure_journal add column writer integer not null default 1;

-- Apart from the blobs: their rows are large. A blob that is not in here was put by older code, maybe by hand; it is
-- never collected, unless an entry turns out to refer to it.
create table perdure_blob_puts (
    blob_id text primary key,
    put_at real not null
) without rowid;

-- An empty run_id: somebody keeps the blob.
create table perdure_blob_uses (
    blob_id text not null,
    run_id text not null,
    primary key (blob_id, run_id)
) without rowid;
create index perdure_blob_uses_by_run on perdure_blob_uses (run_id);

-- Entries whose references are not noted yet: those of older code, which may still work on this database. Nothing is
-- collected while there is one. An index and no trigger: entries of newer code cost nothing.
create index perdure_journal_unnoted on perdure_journal (run_id) where writer < 2 and instr(events, 'blob":"') > 0;

-- Older code does not say that it put a blob again.
create trigger perdure_blobs_put_again before insert on perdure_blobs
begin
    update perdure_blob_puts set put_at = (julianday('now') - 2440587.5) * 86400.0 where blob_id = new.id;
end;
-- <<< migration
insert into perdure_migrations (number, name, checksum, applied_at) values (
    2, (select '0002_upkeep' where (select count(*) from perdure_migrations) = 2 - 1),
    '208f2c402b78ebe38ee5964402dca2a0a8c766bf4ace93d390f1daf075b35abd', (julianday('now') - 2440587.5) * 86400.0);
pragma user_version = 2;
update perdure_migrations set works_with = 1 where number = 2;
pragma application_id = 1885696612;
commit;
