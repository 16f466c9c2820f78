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
