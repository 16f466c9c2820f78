-- To be applied by `perdure migrate`, or by hand:
-- PGOPTIONS='-c search_path=SCHEMA' psql -f 0001_initial.sql DATABASE
begin;
select pg_advisory_xact_lock(hashtextextended('perdure migrations', 0));
-- >>> migration
-- The journal is the only truth; heads and runs are projections of it that can be rebuilt. Texts that are compared or
-- put in order are of collation "C": order must not depend on how a database was created.

create table perdure_migrations (
    number integer primary key,
    name text not null,
    checksum text not null,
    works_with integer not null,
    applied_at double precision not null
);

-- One row per append: the events of one moment, a JSON array. As text: a `jsonb` would forget how it was written, and
-- has no place for every string that JSON has.
create table perdure_journal (
    run_id text collate "C" not null,
    seq bigint not null,
    at double precision not null,
    checksum bigint not null,
    events text not null,
    primary key (run_id, seq)
);

-- What an append compares and swaps. Apart from the runs, so that a step touches one small row and no index; and with
-- room on every page, so that the new version of a row lies beside the old one.
create table perdure_heads (
    run_id text collate "C" primary key,
    next_seq bigint not null,
    at double precision not null,
    size bigint not null
) with (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

create table perdure_runs (
    run_id text collate "C" primary key,
    id text collate "C" not null,
    incarnation bigint not null,
    program text collate "C" not null,
    version text not null,
    status text collate "C" not null,
    owner text collate "C",
    epoch bigint not null,
    wake_at double precision,
    created_at double precision not null,
    finished_at double precision,
    tags text not null,
    input text not null,
    input_blob text not null,
    output text not null,
    output_blob text not null,
    error text,
    reason text not null,
    parent text not null,
    root text collate "C" not null,
    queue text collate "C" not null,
    queue_key text collate "C" not null,
    priority bigint not null,
    not_before double precision,
    began_at double precision,
    continued_as text not null,
    approvals bigint not null,
    forked_from text not null,
    checksum bigint not null
) with (fillfactor = 80);
-- Runs that live in the journal of another (root is not '') have ids of their own in it.
create unique index perdure_runs_by_id on perdure_runs (id, incarnation, root);
create index perdure_runs_by_wake on perdure_runs (wake_at) where wake_at is not null;
-- Runs that ask somebody something: few, however many runs there are.
create index perdure_runs_by_approvals on perdure_runs (run_id) where approvals > 0 and root = '';
create index perdure_runs_by_owner on perdure_runs (owner, status, run_id) where finished_at is null;
-- Runs that stand still are looked for again and again, and are few among many.
create index perdure_runs_parked on perdure_runs (run_id) where status = 'parked';
create index perdure_runs_by_program on perdure_runs (program) where finished_at is null;

-- Queues: whose turn it is; what is under way; what began when, in all and of one key. Only runs of queues are in these.
create index perdure_runs_by_turn on perdure_runs
    (queue, priority, queue_key, (coalesce(not_before, created_at)), run_id) where status = 'queued' and queue <> '';
create index perdure_runs_by_ready on perdure_runs (queue, (coalesce(not_before, created_at)))
    where status = 'queued' and queue <> '';
create index perdure_runs_under_way on perdure_runs (queue, queue_key) where began_at is not null and finished_at is null;
create index perdure_runs_by_start on perdure_runs (queue, began_at) where began_at is not null;
create index perdure_runs_by_key on perdure_runs (queue, queue_key, began_at) where began_at is not null;

create table perdure_leases (
    key text collate "C" primary key,
    owner text collate "C" not null,
    epoch bigint not null,
    expires double precision not null
) with (fillfactor = 60);
create index perdure_leases_by_owner on perdure_leases (owner);
create sequence perdure_epochs;

create table perdure_blobs (
    id text collate "C" primary key,
    data bytea not null,
    put_at double precision not null
);

-- Which blobs a journal refers to. An empty run_id: somebody keeps the blob.
create table perdure_blob_uses (
    blob_id text collate "C" not null,
    run_id text collate "C" not null,
    primary key (blob_id, run_id)
);
create index perdure_blob_uses_by_run on perdure_blob_uses (run_id);

-- Which runs an orchestrator has just been offered, so that another one is offered others. A hint that runs out within
-- seconds: the journal decides who may write. Unlogged, since losing it costs nothing.
create unlogged table perdure_offers (
    run_id text collate "C" primary key,
    taker text not null,
    until double precision not null
);
-- <<< migration
insert into perdure_migrations (number, name, checksum, works_with, applied_at) values (
    1, (select '0001_initial' where (select count(*) from perdure_migrations) = 1 - 1),
    '8c244ea3d7e51a385683cadc330cd49e2b479a2e8ca1d790021f1a94f8597529', 1, extract(epoch from clock_timestamp()));
commit;
