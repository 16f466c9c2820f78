-- To be applied by `perdure migrate`, or by hand:
-- PGOPTIONS='-c search_path=SCHEMA' psql -f 0003_picks.sql DATABASE
begin;
select pg_advisory_xact_lock(hashtextextended('perdure migrations', 0));
-- >>> migration
-- Which runs of a queue an orchestrator was offered last, so that another one is offered others. As `offers`, a hint that
-- runs out within seconds. One row for each that serves a queue, however many runs go through it.
-- works with: 1

create unlogged table perdure_picks (
    queue text collate "C" not null,
    taker text collate "C" not null,
    until double precision not null,
    run_ids text[] not null,
    primary key (queue, taker)
) with (fillfactor = 30);
-- <<< migration
insert into perdure_migrations (number, name, checksum, works_with, applied_at) values (
    3, (select '0003_picks' where (select count(*) from perdure_migrations) = 3 - 1),
    '1dfd273329ae3f4555a55ec467ef3ec796af006e063d23569850fda7b23d7853', 1, extract(epoch from clock_timestamp()));
commit;
