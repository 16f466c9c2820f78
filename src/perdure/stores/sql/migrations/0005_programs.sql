-- Which programs have unfinished runs is asked by every engine that starts, however many runs of others there are.
-- works with: 1

create index perdure_runs_by_program on perdure_runs (program) where finished_at is null;
