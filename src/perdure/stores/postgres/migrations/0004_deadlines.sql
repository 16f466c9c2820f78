-- To be applied by `perdure migrate`, or by hand:
-- PGOPTIONS='-c search_path=SCHEMA' psql -f 0004_deadlines.sql DATABASE
begin;
select pg_advisory_xact_lock(hashtextextended('perdure migrations', 0));
-- >>> migration
-- Deadlines of runs that have not ended, by program: any orchestrator holds those of programs that none has. Triggers and
-- not code: what older code starts and ends is in here, too. A run that has a deadline has a `wake_at` until it ends.
-- works with: 1

create table perdure_deadlines (
    run_id text collate "C" primary key,
    program text collate "C" not null,
    deadline double precision not null
);
create index perdure_deadlines_by_time on perdure_deadlines (program, deadline);
create function perdure_note_deadline() returns trigger language plpgsql set search_path from current as $$
declare
    began json := replace(new.events, '\u0000', '\ufffd')::json -> 0;
begin
    if began ->> 'deadline' is not null
        and not exists (select 1 from perdure_runs where run_id = new.run_id and finished_at is not null) then
        insert into perdure_deadlines (run_id, program, deadline)
        values (new.run_id, began ->> 'program', (began ->> 'deadline')::float8) on conflict do nothing;
    end if;
    return null;
end
$$;
create trigger perdure_deadlines_noted after insert on perdure_journal for each row
when (new.seq = 0 and position('"deadline":' in new.events) > 0) execute function perdure_note_deadline();
create function perdure_drop_deadline() returns trigger language plpgsql set search_path from current as $$
begin
    delete from perdure_deadlines where run_id = new.run_id;
    return null;
end
$$;
create trigger perdure_deadlines_over after update of finished_at on perdure_runs for each row
when (new.finished_at is not null and old.wake_at is not null) execute function perdure_drop_deadline();
insert into perdure_deadlines (run_id, program, deadline)
select r.run_id, r.program, (replace(j.events, '\u0000', '\ufffd')::json -> 0 ->> 'deadline')::float8
from perdure_runs r join perdure_journal j on j.run_id = r.run_id and j.seq = 0
where r.finished_at is null and r.root = '' and position('"deadline":' in j.events) > 0
    and replace(j.events, '\u0000', '\ufffd')::json -> 0 ->> 'deadline' is not null;

-- A run begins at the moment that it was started for, the last time that it was; its deadline is none.
create or replace view perdure_v_timers as
select run_id, id, program, case kind when 'timer' then 'sleep' else 'timeout' end as kind, path, deadline as due_at
from perdure_v_waits
where run_status in ('queued', 'running', 'waiting', 'paused', 'parked') and status = 'open' and deadline is not null
union all
select run_id, id, program, 'retry', path, retry_at
from perdure_v_steps
where run_status in ('queued', 'running', 'waiting', 'paused', 'parked') and retry_at is not null
union all
select run_id, id, program, 'start', null, to_timestamp(begins)
from (
    select r.run_id, r.id, r.program, r.created_at, coalesce(r.not_before, (
        select (e.event ->> 'not_before')::float8 from perdure_v_events e
        where e.run_id = r.run_id and e.type in ('RunStarted', 'InputReplaced') order by e.seq desc limit 1)) as begins
    from perdure_runs r where r.status = 'queued' and r.root = '') queued
where begins > created_at;
-- <<< migration
insert into perdure_migrations (number, name, checksum, works_with, applied_at) values (
    4, (select '0004_deadlines' where (select count(*) from perdure_migrations) = 4 - 1),
    '3f9ffcf99619c2cfa707d80fbfc0e12ebe10eca3e38e43fcdd19358d190d6422', 1, extract(epoch from clock_timestamp()));
commit;
