-- To be applied by an engine, by `perdure migrate`, or by hand: sqlite3 FILE < 0006_deadlines.sql
.bail on
begin immediate;
-- >>> migration
-- Deadlines of runs that have not ended, by program: any orchestrator holds those of programs that none has. Triggers and
-- not code: what older code starts and ends is in here, too. A run that has a deadline has a `wake_at` until it ends.
-- works with: 1

create table perdure_deadlines (
    run_id text primary key,
    program text not null,
    deadline real not null
) without rowid;
create index perdure_deadlines_by_time on perdure_deadlines (program, deadline);
create trigger perdure_deadlines_noted after insert on perdure_journal
when new.seq = 0 and instr(new.events, '"deadline":') > 0
begin
    insert into perdure_deadlines (run_id, program, deadline)
    select new.run_id, new.events ->> '$[0].program', new.events ->> '$[0].deadline'
    where json_valid(new.events) and new.events ->> '$[0].deadline' is not null
        and not exists (select 1 from perdure_runs where run_id = new.run_id and finished_at is not null)
    on conflict do nothing;
end;
create trigger perdure_deadlines_over after update of finished_at on perdure_runs
when new.finished_at is not null and old.wake_at is not null
begin
    delete from perdure_deadlines where run_id = new.run_id;
end;
insert into perdure_deadlines (run_id, program, deadline)
select r.run_id, r.program, j.events ->> '$[0].deadline'
from perdure_runs r join perdure_journal j on j.run_id = r.run_id and j.seq = 0
where r.finished_at is null and r.root = '' and instr(j.events, '"deadline":') > 0 and json_valid(j.events)
    and j.events ->> '$[0].deadline' is not null;

-- A run begins at the moment that it was started for, the last time that it was; its deadline is none.
drop view perdure_v_timers;
create view perdure_v_timers as
select run_id, id, program, iif(kind = 'timer', 'sleep', 'timeout') as kind, path, deadline as due_at
from perdure_v_waits
where run_status in ('queued', 'running', 'waiting', 'paused', 'parked') and status = 'open' and deadline is not null
union all
select run_id, id, program, 'retry', path, retry_at
from perdure_v_steps
where run_status in ('queued', 'running', 'waiting', 'paused', 'parked') and retry_at is not null
union all
select run_id, id, program, 'start', null, strftime('%Y-%m-%dT%H:%M:%fZ', begins, 'unixepoch')
from (
    select r.run_id, r.id, r.program, r.created_at, coalesce(r.not_before, (
        select e.event ->> '$.not_before' from perdure_v_events e
        where e.run_id = r.run_id and e.type in ('RunStarted', 'InputReplaced') order by e.seq desc limit 1)) as begins
    from perdure_runs r where r.status = 'queued' and r.root = '')
where begins > created_at;
-- <<< migration
insert into perdure_migrations (number, name, checksum, applied_at) values (
    6, (select '0006_deadlines' where (select count(*) from perdure_migrations) = 6 - 1),
    'd362036c6e3d75e5f0ba02797ace618e014aa82efc761500966d6f98428ec00b', (julianday('now') - 2440587.5) * 86400.0);
pragma user_version = 6;
update perdure_migrations set works_with = 1 where number = 6;
pragma application_id = 1885696612;
commit;
