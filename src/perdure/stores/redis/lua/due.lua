-- Runs that are due: of each program and owner as many as are asked for; the caller takes the earliest.

local now, limit, programs, skip, queues = unpack(arguments(), 1, 5)
local found, stale = {}, {}
local places = {}
timers(programs, skip, queues, now, function(run_id, program, owner, at, waiting, place, member)
    local x = index_of(run_id)
    if (x and not (x[WAKE] and tonumber(x[WAKE]) == tonumber(at))) or (not x and call('EXISTS', P .. 'row:' .. run_id) == 0) then
        -- Left by a row that was damaged or lost: the row that is there now says otherwise.
        stale[#stale + 1] = { place, member }
    else
        found[#found + 1] = { run_id, program, owner, at, waiting }
        places[place] = (places[place] or 0) + 1
    end
    return (places[place] or 0) < limit
end)
for _, one in ipairs(stale) do
    call('ZREM', P .. 'wake:' .. one[1], one[2])
end
return found
