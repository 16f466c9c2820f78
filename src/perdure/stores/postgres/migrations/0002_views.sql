-- To be applied by `perdure migrate`, or by hand:
-- PGOPTIONS='-c search_path=SCHEMA' psql -f 0002_views.sql DATABASE
begin;
select pg_advisory_xact_lock(hashtextextended('perdure migrations', 0));
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
    r.tags::json as tags,
    case r.input_blob when '' then r.input::json end as input,
    nullif(r.input_blob, '') as input_blob,
    case when r.output_blob = '' and r.finished_at is not null then r.output::json end as output,
    nullif(r.output_blob, '') as output_blob,
    replace(r.error, '\u0000', '\ufffd')::json ->> 'type' as error_type,
    replace(r.error, '\u0000', '\ufffd')::json ->> 'message' as error_message,
    nullif(r.reason, '') as reason,
    r.approvals,
    nullif(r.parent, '') as parent,
    case r.root when '' then r.run_id else r.root end as root,
    nullif(r.forked_from, '') as forked_from,
    nullif(r.continued_as, '') as continued_as,
    to_timestamp(r.created_at) as created_at,
    to_timestamp(h.at) as updated_at,
    to_timestamp(r.finished_at) as finished_at,
    to_timestamp(r.wake_at) as due_at,
    h.next_seq,
    h.size as journal_bytes
from perdure_runs r
left join perdure_heads h on h.run_id = case r.root when '' then r.run_id else r.root end;

-- PostgreSQL has no character of number 0, which JSON may hold: another one is shown in its place.
create view perdure_v_events as
select
    r.run_id,
    r.id,
    r.program,
    r.status as run_status,
    j.seq + e.place - 1 as seq,
    to_timestamp(j.at) as at,
    e.event ->> 'type' as type,
    e.event ->> 'op' as path,
    e.event
from perdure_runs r
join perdure_journal j on j.run_id = r.run_id
cross join lateral json_array_elements(replace(j.events, '\u0000', '\ufffd')::json) with ordinality as e (event, place);

-- Each event with its number before it: the smallest is the first, the largest the last.
create view perdure_v_steps as
select
    run_id,
    id,
    program,
    run_status,
    path,
    split_part(regexp_replace(path, '^.*/', ''), ':', 1) as name,
    case
        when ended is null then
            case when run_status in ('completed', 'failed', 'cancelled', 'bailed') then 'unknown' else 'running' end
        when ended ->> 'type' = 'StepSucceeded' then 'succeeded'
        when ended ->> 'type' = 'StepSkipped' then 'skipped'
        when ended ->> 'unknown' = 'true' then 'unknown'
        else 'failed'
    end as status,
    coalesce((substr(last_start, 16)::json ->> 'attempt')::bigint, 1) as attempt,
    attempts,
    case when ended ->> 'blob' is null then ended -> 'value' end as output,
    ended ->> 'blob' as output_blob,
    coalesce(ended #>> '{error,type}', case when ended is null then substr(failure, 16)::json #>> '{error,type}' end)
        as error_type,
    coalesce(
        ended #>> '{error,message}', case when ended is null then substr(failure, 16)::json #>> '{error,message}' end)
        as error_message,
    substr(progress, 16)::json -> 'progress' as progress,
    substr(first_start, 16)::json ->> 'queue' as queue,
    coalesce(substr(first_start, 16)::json ->> 'inputs', '') as input_hash,
    coalesce(substr(first_start, 16)::json ->> 'source', '') as source,
    started_at,
    case when ended is not null then finished_at end as finished_at,
    case when ended is null and failure > last_start and run_status not in ('completed', 'failed', 'cancelled', 'bailed')
        then to_timestamp((substr(failure, 16)::json ->> 'retry_at')::float8) end as retry_at
from (
    select *, case when outcome > last_start then substr(outcome, 16)::json end as ended
    from (
        select
            run_id, id, program, run_status, path,
            min((lpad(seq::text, 15, '0') || event::text) collate "C") filter (where type = 'StepStarted') as first_start,
            max((lpad(seq::text, 15, '0') || event::text) collate "C") filter (where type = 'StepStarted') as last_start,
            max((lpad(seq::text, 15, '0') || event::text) collate "C")
                filter (where type in ('StepSucceeded', 'StepFailed', 'StepSkipped')) as outcome,
            max((lpad(seq::text, 15, '0') || event::text) collate "C") filter (where type = 'AttemptFailed') as failure,
            max((lpad(seq::text, 15, '0') || event::text) collate "C") filter (where type = 'StepProgressed') as progress,
            count(*) filter (where type = 'StepStarted') as attempts,
            min(at) filter (where type = 'StepStarted') as started_at,
            max(at) filter (where type in ('StepSucceeded', 'StepFailed', 'StepSkipped')) as finished_at
        from perdure_v_events
        where type in ('StepStarted', 'StepSucceeded', 'StepFailed', 'StepSkipped', 'AttemptFailed', 'StepProgressed')
        group by run_id, id, program, run_status, path
    ) events
) steps;

create view perdure_v_waits as
select
    run_id,
    id,
    program,
    run_status,
    path,
    substr(opened, 16)::json ->> 'kind' as kind,
    substr(opened, 16)::json ->> 'name' as name,
    case
        when resolved > opened then 'resolved'
        when run_status in ('completed', 'failed', 'cancelled', 'bailed') then 'dropped'
        when exists (
            select 1 from perdure_v_events c where c.run_id = w.run_id and c.type = 'ChildFinished'
            and substr(w.path, 1, length(c.path) + 1) = c.path || '/') then 'dropped'
        else 'open'
    end as status,
    case when resolved > opened then substr(resolved, 16)::json ->> 'by' end as resolved_by,
    case when resolved > opened then substr(resolved, 16)::json -> 'value' end as answer,
    substr(opened, 16)::json -> 'request' as request,
    substr(opened, 16)::json -> 'schema' as schema,
    coalesce(substr(opened, 16)::json -> 'approvers', '[]'::json) as approvers,
    coalesce(substr(opened, 16)::json ->> 'source', '') as source,
    opened_at,
    to_timestamp((substr(opened, 16)::json ->> 'deadline')::float8) as deadline,
    case when resolved > opened then resolved_at end as resolved_at
from (
    select
        run_id, id, program, run_status, path,
        max((lpad(seq::text, 15, '0') || event::text) collate "C") filter (where type = 'WaitOpened') as opened,
        max((lpad(seq::text, 15, '0') || event::text) collate "C") filter (where type = 'WaitResolved') as resolved,
        max(at) filter (where type = 'WaitOpened') as opened_at,
        max(at) filter (where type = 'WaitResolved') as resolved_at
    from perdure_v_events
    where type in ('WaitOpened', 'WaitResolved')
    group by run_id, id, program, run_status, path
) w;

create view perdure_v_timers as
select run_id, id, program, case kind when 'timer' then 'sleep' else 'timeout' end as kind, path, deadline as due_at
from perdure_v_waits
where run_status in ('queued', 'running', 'waiting', 'paused', 'parked') and status = 'open' and deadline is not null
union all
select run_id, id, program, 'retry', path, retry_at
from perdure_v_steps
where run_status in ('queued', 'running', 'waiting', 'paused', 'parked') and retry_at is not null
union all
select run_id, id, program, 'start', null, to_timestamp(coalesce(not_before, wake_at))
from perdure_runs
where status = 'queued' and root = '' and coalesce(not_before, wake_at) > created_at;
-- <<< migration
insert into perdure_migrations (number, name, checksum, works_with, applied_at) values (
    2, (select '0002_views' where (select count(*) from perdure_migrations) = 2 - 1),
    'a4bd53e4fbff2c05db3b349db667f9309a9b90e4949165567dff9f2dfdd43112', 1, extract(epoch from clock_timestamp()));
commit;
