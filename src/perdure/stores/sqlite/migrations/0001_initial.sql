-- To be applied by an engine, by `perdure migrate`, or by hand: sqlite3 FILE < 0001_initial.sql
.bail on
begin immediate;
-- >>> migration
-- The journal is the only truth; heads and runs are projections of it that can be rebuilt.

create table perdure_migrations (
    number integer primary key,
    name text not null,
    checksum text not null,
    applied_at real not null
);

-- One row per append: the events of one moment, a JSON array. Rows lie in the order they were written, so pages fill up.
create table perdure_journal (
    position integer primary key,
    run_id text not null,
    seq integer not null,
    at real not null,
    checksum integer not null,
    events text not null
);
create unique index perdure_journal_by_run on perdure_journal (run_id, seq);

-- What an append compares and swaps. Apart from the runs, so that a step touches one small row and no index.
create table perdure_heads (
    run_id text primary key,
    next_seq integer not null,
    at real not null,
    size integer not null
) without rowid;

create table perdure_runs (
    run_id text primary key,
    id text not null,
    incarnation integer not null,
    program text not null,
    version text not null,
    status text not null,
    owner text,
    epoch integer not null,
    wake_at real,
    created_at real not null,
    finished_at real,
    tags text not null,
    input text not null,
    input_blob text not null,
    output text not null,
    output_blob text not null,
    error text,
    reason text not null,
    parent text not null,
    root text not null,
    queue text not null,
    queue_key text not null,
    priority integer not null,
    not_before real,
    began_at real,
    continued_as text not null,
    approvals integer not null,
    forked_from text not null,
    checksum integer not null
) without rowid;
-- Runs that live in the journal of another (root is not '') have ids of their own in it.
create unique index perdure_runs_by_id on perdure_runs (id, incarnation, root);
create index perdure_runs_by_wake on perdure_runs (wake_at) where wake_at is not null;
-- Runs that ask somebody something: few, however many runs there are.
create index perdure_runs_by_approvals on perdure_runs (run_id) where approvals > 0 and root = '';
create index perdure_runs_by_owner on perdure_runs (owner, status) where finished_at is null;

-- Queues: whose turn it is; what is under way; what began when, in all and of one key. Only runs of queues are in these.
create index perdure_runs_by_turn on perdure_runs
    (queue, priority, queue_key, coalesce(not_before, created_at), run_id, program) where status = 'queued' and queue <> '';
create index perdure_runs_by_ready on perdure_runs (queue, coalesce(not_before, created_at))
    where status = 'queued' and queue <> '';
create index perdure_runs_under_way on perdure_runs (queue, queue_key) where began_at is not null and finished_at is null;
create index perdure_runs_by_start on perdure_runs (queue, began_at) where began_at is not null;
create index perdure_runs_by_key on perdure_runs (queue, queue_key, began_at) where began_at is not null;

create table perdure_leases (
    key text primary key,
    owner text not null,
    epoch integer not null,
    expires real not null
) without rowid;

create table perdure_blobs (
    id text primary key,
    data blob not null
);
-- <<< migration
insert into perdure_migrations (number, name, checksum, applied_at) values (
    1, (select '0001_initial' where (select count(*) from perdure_migrations) = 1 - 1),
    '4ea145dead5530fac4cf0500088da2e9ff5bd0e3093dceadfb7ce0f7583c5ae9', (julianday('now') - 2440587.5) * 86400.0);
pragma user_version = 1;
pragma application_id = 1885696612;
commit;
