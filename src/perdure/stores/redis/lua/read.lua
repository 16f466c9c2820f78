-- The entries of journals, each with where its head says that it ends.

local run_ids, start, limit = unpack(arguments(), 1, 3)
local answers = {}
for i, run_id in ipairs(run_ids) do
    local key = P .. 'journal:' .. run_id
    local first = start > 0 and place_of(key, start) or 0
    -- An entry holds at least one event, and the first may begin before `start`.
    local entries = call('LRANGE', key, first, limit and first + limit or -1)
    answers[i] = { call('HGET', P .. 'head:' .. run_id, 'n'), entries }
end
return answers
