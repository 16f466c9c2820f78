-- The entries of journals, each with where its head says that it ends.

local run_ids, start, limit = unpack(arguments(), 1, 3)
local answers = {}
for i, run_id in ipairs(run_ids) do
    local key = P .. 'journal:' .. run_id
    local first = start > 0 and place_of(key, start) or 0
    local last = -1
    if limit then
        -- An entry holds at least one event, and the first may begin before `start`; none is read that begins behind
        -- the page, unless an entry is damaged.
        last = place_of(key, start + limit - 1)
        last = last < first and first + limit or math.min(first + limit, last)
    end
    local entries = call('LRANGE', key, first, last)
    answers[i] = { call('HGET', P .. 'head:' .. run_id, 'n'), entries }
end
return answers
