-- Runs that stand still are looked for again and again, and are few among many.
-- works with: 1

create index perdure_runs_parked on perdure_runs (run_id) where status = 'parked';
