"""Distinct names by skip scans: one index step for each name, however many runs have it. For both SQL stores."""

OWNERS = """
    with recursive owners(owner) as (
        select min(owner) from perdure_runs where finished_at is null
        union all
        select (select min(r.owner) from perdure_runs r where r.finished_at is null and r.owner > owners.owner)
        from owners where owners.owner is not null
    )
    select owner from owners where owner is not null
"""
PROGRAMS = """
    with recursive programs(program) as (
        select min(program) from perdure_runs where finished_at is null
        union all
        select (select min(r.program) from perdure_runs r where r.finished_at is null and r.program > programs.program)
        from programs where programs.program is not null
    )
    select program from programs where program is not null
"""
# To be followed by what to select for each name.
QUEUES = """
    with recursive names (name) as (
        select min(queue) from perdure_runs where status = 'queued' and queue <> ''
        union all
        select (select min(r.queue) from perdure_runs r
                where r.status = 'queued' and r.queue <> '' and r.queue > names.name)
        from names where names.name is not null
    )
"""
# When the first run of each may begin. To be followed by a condition on the names.
FIRST_QUEUED = """
    select name, (select min(coalesce(r.not_before, r.created_at)) from perdure_runs r
                  where r.status = 'queued' and r.queue = name and r.queue <> '')
    from names where name is not null
"""
