-- To be applied by an engine, by `perdure migrate`, or by hand: sqlite3 FILE < 0004_views.sql
.bail on
begin immediate;
-- >>> migration
-- What people and dashboards may query: docs/sql-views.md describes every column. Tables may change; these stay.
-- works with: 1

create view perdure_v_runs as
select
    r.id,
    r.run_id,
    r.incarnation,
    r.program,
    r.version,
    r.status,
    r.owner,
    r.epoch,
    nullif(r.queue, '') as queue,
    nullif(r.queue_key, '') as key,
    r.priority,
    r.tags,
    case r.input_blob when '' then r.input end as input,
    nullif(r.input_blob, '') as input_blob,
    case when r.output_blob = '' and r.finished_at is not null then r.output end as output,
    nullif(r.output_blob, '') as output_blob,
    r.error ->> '$.type' as error_type,
    r.error ->> '$.message' as error_message,
    nullif(r.reason, '') as reason,
    r.approvals,
    nullif(r.parent, '') as parent,
    case r.root when '' then r.run_id else r.root end as root,
    nullif(r.forked_from, '') as forked_from,
    nullif(r.continued_as, '') as continued_as,
    strftime('%Y-%m-%dT%H:%M:%fZ', r.created_at, 'unixepoch') as created_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', h.at, 'unixepoch') as updated_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', r.finished_at, 'unixepoch') as finished_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', r.wake_at, 'unixepoch') as due_at,
    h.next_seq,
    h.size as journal_bytes
from perdure_runs r
left join perdure_heads h on h.run_id = case r.root when '' then r.run_id else r.root end;

-- Text that is no JSON (a damaged entry) is left out: one run must not hide the others.
create view perdure_v_events as
select
    r.run_id,
    r.id,
    r.program,
    r.status as run_status,
    j.seq + e.key as seq,
    strftime('%Y-%m-%dT%H:%M:%fZ', j.at, 'unixepoch') as at,
    e.value ->> '$.type' as type,
    e.value ->> '$.op' as path,
    e.value as event
from perdure_runs r
join perdure_journal j on j.run_id = r.run_id
join json_each(case when json_valid(j.events) then j.events else '[]' end) e;

-- Each event with its number before it: the smallest is the first, the largest the last.
create view perdure_v_steps as
select
    run_id,
    id,
    program,
    run_status,
    path,
    substr(last_part, 1, instr(last_part, ':') - 1) as name,
    case
        when ended is null then iif(run_status in ('completed', 'failed', 'cancelled', 'bailed'), 'unknown', 'running')
        when ended ->> '$.type' = 'StepSucceeded' then 'succeeded'
        when ended ->> '$.type' = 'StepSkipped' then 'skipped'
        when ended ->> '$.unknown' then 'unknown'
        else 'failed'
    end as status,
    coalesce(substr(last_start, 16) ->> '$.attempt', 1) as attempt,
    attempts,
    iif(ended ->> '$.blob' is null, ended -> '$.value', null) as output,
    ended ->> '$.blob' as output_blob,
    coalesce(ended ->> '$.error.type', iif(ended is null, substr(failure, 16) ->> '$.error.type', null)) as error_type,
    coalesce(ended ->> '$.error.message', iif(ended is null, substr(failure, 16) ->> '$.error.message', null))
        as error_message,
    substr(progress, 16) -> '$.progress' as progress,
    substr(first_start, 16) ->> '$.queue' as queue,
    coalesce(substr(first_start, 16) ->> '$.inputs', '') as input_hash,
    coalesce(substr(first_start, 16) ->> '$.source', '') as source,
    started_at,
    iif(ended is null, null, finished_at) as finished_at,
    case when ended is null and failure > last_start and run_status not in ('completed', 'failed', 'cancelled', 'bailed')
        then strftime('%Y-%m-%dT%H:%M:%fZ', substr(failure, 16) ->> '$.retry_at', 'unixepoch') end as retry_at
from (
    select
        *,
        iif(outcome > last_start, substr(outcome, 16), null) as ended,
        replace(path, rtrim(path, replace(path, '/', '')), '') as last_part
    from (
        select
            run_id, id, program, run_status, path,
            min(iif(type = 'StepStarted', printf('%015d', seq) || event, null)) as first_start,
            max(iif(type = 'StepStarted', printf('%015d', seq) || event, null)) as last_start,
            max(iif(type in ('StepSucceeded', 'StepFailed', 'StepSkipped'), printf('%015d', seq) || event, null))
                as outcome,
            max(iif(type = 'AttemptFailed', printf('%015d', seq) || event, null)) as failure,
            max(iif(type = 'StepProgressed', printf('%015d', seq) || event, null)) as progress,
            sum(type = 'StepStarted') as attempts,
            min(iif(type = 'StepStarted', at, null)) as started_at,
            max(iif(type in ('StepSucceeded', 'StepFailed', 'StepSkipped'), at, null)) as finished_at
        from perdure_v_events
        where type in ('StepStarted', 'StepSucceeded', 'StepFailed', 'StepSkipped', 'AttemptFailed', 'StepProgressed')
        group by run_id, id, program, run_status, path
    )
);

create view perdure_v_waits as
select
    run_id,
    id,
    program,
    run_status,
    path,
    substr(opened, 16) ->> '$.kind' as kind,
    substr(opened, 16) ->> '$.name' as name,
    case
        when resolved > opened then 'resolved'
        when run_status in ('completed', 'failed', 'cancelled', 'bailed') then 'dropped'
        when exists (
            select 1 from perdure_v_events c where c.run_id = w.run_id and c.type = 'ChildFinished'
            and substr(w.path, 1, length(c.path) + 1) = c.path || '/') then 'dropped'
        else 'open'
    end as status,
    iif(resolved > opened, substr(resolved, 16) ->> '$.by', null) as resolved_by,
    iif(resolved > opened, substr(resolved, 16) -> '$.value', null) as answer,
    substr(opened, 16) -> '$.request' as request,
    substr(opened, 16) -> '$.schema' as schema,
    coalesce(substr(opened, 16) -> '$.approvers', '[]') as approvers,
    coalesce(substr(opened, 16) ->> '$.source', '') as source,
    opened_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', substr(opened, 16) ->> '$.deadline', 'unixepoch') as deadline,
    iif(resolved > opened, resolved_at, null) as resolved_at
from (
    select
        run_id, id, program, run_status, path,
        max(iif(type = 'WaitOpened', printf('%015d', seq) || event, null)) as opened,
        max(iif(type = 'WaitResolved', printf('%015d', seq) || event, null)) as resolved,
        max(iif(type = 'WaitOpened', at, null)) as opened_at,
        max(iif(type = 'WaitResolved', at, null)) as resolved_at
    from perdure_v_events
    where type in ('WaitOpened', 'WaitResolved')
    group by run_id, id, program, run_status, path
) w;

create view perdure_v_timers as
select run_id, id, program, iif(kind = 'timer', 'sleep', 'timeout') as kind, path, deadline as due_at
from perdure_v_waits
where run_status in ('queued', 'running', 'waiting', 'paused', 'parked') and status = 'open' and deadline is not null
union all
select run_id, id, program, 'retry', path, retry_at
from perdure_v_steps
where run_status in ('queued', 'running', 'waiting', 'paused', 'parked') and retry_at is not null
union all
select run_id, id, program, 'start', null,
    strftime('%Y-%m-%dT%H:%M:%fZ', coalesce(not_before, wake_at), 'unixepoch')
from perdure_runs
where status = 'queued' and root = '' and coalesce(not_before, wake_at) > created_at;
-- <<< migration
insert into perdure_migrations (number, name, checksum, applied_at) values (
    4, (select '0004_views' where (select count(*) from perdure_migrations) = 4 - 1),
    '214fc8d47471fe8d642276b190aa3816e40f255fcdef31859145e058ad2bb1ea', (julianday('now') - 2440587.5) * 86400.0);
pragma user_version = 4;
update perdure_migrations set works_with = 1 where number = 4;
pragma application_id = 1885696612;
commit;
