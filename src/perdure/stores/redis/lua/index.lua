-- The indexes of rows: sorted sets and hashes that follow each row, within the script that writes it.

-- Put a member elsewhere, or at another score; nil is nowhere.
local function move(old_key, old_member, old_score, key, member, score)
    if old_key and (old_key ~= key or old_member ~= member) then
        call('ZREM', old_key, old_member)
    end
    if key and (old_key ~= key or old_member ~= member or old_score ~= score) then
        call('ZADD', key, score, member)
    end
end

local function count(key, field, change)
    if call('HINCRBY', key, field, change) <= 0 then
        call('HDEL', key, field)
    end
end

local function owned(run_id, x)
    if x and x[OWNER] and not x[FINISHED] then
        return P .. 'own:' .. x[PROGRAM] .. SEP .. x[STATUS] .. SEP .. x[OWNER], run_id .. SEP .. x[QUEUE], 0
    end
end

local function asking(run_id, x)
    if x and x[APPROVALS] > 0 and x[ROOT] == '' then
        return P .. 'asking', run_id, 0
    end
end

local function by_status(run_id, x)
    if x then
        return P .. 'by:' .. x[STATUS], run_id, 0
    end
end

local function started(run_id, x)
    if x and x[QUEUE] ~= '' and x[BEGAN] then
        return P .. 'starts:' .. x[QUEUE], run_id, x[BEGAN]
    end
end

-- Timers, by program and owner: a caller visits only the runs that it asks for.
local function wake(run_id, x)
    if x and x[WAKE] then
        local waiting = x[STATUS] == 'waiting' and 'w' or '-'
        return x[PROGRAM] .. SEP .. (x[OWNER] or ''), run_id .. SEP .. x[QUEUE] .. SEP .. waiting, x[WAKE]
    end
end

local function move_wake(run_id, old, new)
    local old_place, old_member, old_score = wake(run_id, old)
    local place, member, score = wake(run_id, new)
    move(
        old_place and P .. 'wake:' .. old_place, old_member, old_score,
        place and P .. 'wake:' .. place, member, score
    )
    if old_place ~= place then
        if old_place and call('EXISTS', P .. 'wake:' .. old_place) == 0 then
            call('SREM', P .. 'wakes', old_place)
        end
        if place then
            call('SADD', P .. 'wakes', place)
        end
    end
end

-- Queued runs: a line for each priority and key; the keys of a priority by when they were served last.
local function leave_line(run_id, x)
    local queue, place = x[QUEUE], x[QUEUE] .. SEP .. x[PRIORITY]
    local line = P .. 'line:' .. place .. SEP .. x[KEY]
    call('ZREM', line, run_id .. SEP .. x[PROGRAM])
    call('ZREM', P .. 'ready:' .. queue, run_id .. SEP .. x[CREATED])
    if call('EXISTS', line) == 0 then
        call('ZREM', P .. 'lines:' .. place, x[KEY])
        if call('EXISTS', P .. 'lines:' .. place) == 0 then
            call('ZREM', P .. 'priorities:' .. queue, x[PRIORITY])
        end
    end
    if call('EXISTS', P .. 'ready:' .. queue) == 0 then
        call('SREM', P .. 'queued', queue)
    end
end

local function join_line(run_id, x)
    local queue, place = x[QUEUE], x[QUEUE] .. SEP .. x[PRIORITY]
    local served = call('HGET', P .. 'served:' .. queue, x[KEY]) or 0
    call('ZADD', P .. 'line:' .. place .. SEP .. x[KEY], x[READY], run_id .. SEP .. x[PROGRAM])
    call('ZADD', P .. 'lines:' .. place, served, x[KEY])
    call('ZADD', P .. 'priorities:' .. queue, x[PRIORITY], x[PRIORITY])
    call('ZADD', P .. 'ready:' .. queue, x[READY], run_id .. SEP .. x[CREATED])
    call('SADD', P .. 'queued', queue)
end

-- A run of this key began: the key goes to the end, at every priority at which it waits.
local function serve(queue, key, began)
    local before = call('HGET', P .. 'served:' .. queue, key)
    if before and tonumber(before) >= tonumber(began) then
        return
    end
    call('HSET', P .. 'served:' .. queue, key, began)
    for _, priority in ipairs(call('ZRANGE', P .. 'priorities:' .. queue, 0, -1)) do
        call('ZADD', P .. 'lines:' .. queue .. SEP .. priority, 'XX', began, key)
    end
end

local function in_line(x)
    return x and x[QUEUE] ~= '' and x[STATUS] == 'queued'
end

local function under_way(x)
    return x and x[QUEUE] ~= '' and x[BEGAN] and not x[FINISHED]
end

local function occupy(x, change)
    local key = P .. 'under:' .. x[QUEUE]
    count(key, 'k' .. x[KEY], change)
    count(key, 'n', change)
    if change > 0 then
        call('SADD', P .. 'busy', x[QUEUE])
    elseif call('EXISTS', key) == 0 then
        call('SREM', P .. 'busy', x[QUEUE])
    end
end

local function same_line(old, new)
    return old[QUEUE] == new[QUEUE] and old[KEY] == new[KEY] and old[PRIORITY] == new[PRIORITY]
        and old[READY] == new[READY] and old[PROGRAM] == new[PROGRAM] and old[CREATED] == new[CREATED]
end

local function move_queued(run_id, old, new)
    local stays = in_line(old) and in_line(new) and same_line(old, new)
    if in_line(old) and not stays then
        leave_line(run_id, old)
    end
    if under_way(old) and not under_way(new) then
        occupy(old, -1)
    elseif under_way(new) and not under_way(old) then
        occupy(new, 1)
    end
    local old_key, old_member, old_score = started(run_id, old)
    move(old_key, old_member, old_score, started(run_id, new))
    if new and new[BEGAN] and not (old and old[BEGAN]) then
        serve(new[QUEUE], new[KEY], new[BEGAN])
    end
    if in_line(new) and not stays then
        join_line(run_id, new)
    end
end

-- How many roots that have not ended each owner has, by status; and how many runs each program.
local function tally(x, change)
    if x and not x[FINISHED] then
        count(P .. 'programs', x[PROGRAM], change)
        if x[ROOT] == '' then
            count(P .. 'loads', x[STATUS] .. SEP .. (x[OWNER] or ''), change)
        end
    end
end

-- Everything that follows from a row, when it changes from `old` to `new`; either may be nil.
local function reindex(run_id, old, new)
    for _, index in ipairs({ by_status, owned, asking }) do
        local key, member, score = index(run_id, old)
        move(key, member, score, index(run_id, new))
    end
    move_wake(run_id, old, new)
    if old and old[WAKE] and not (new and not new[FINISHED]) then
        -- One that has a deadline has a timer until it ends.
        call('ZREM', P .. 'deadlines:' .. old[PROGRAM], run_id)
    end
    if (old and old[QUEUE] ~= '') or (new and new[QUEUE] ~= '') then
        move_queued(run_id, old, new)
    end
    if not (
        old and new and old[PROGRAM] == new[PROGRAM] and old[STATUS] == new[STATUS] and old[OWNER] == new[OWNER]
        and not old[FINISHED] == not new[FINISHED] and old[ROOT] == new[ROOT]
    ) then
        tally(new, 1)
        tally(old, -1)
    end
end

-- A row is {run_id, index, number of its text}; the text begins with the index.
local function put_row(row)
    local run_id, new, text = row[1], row[2], ARGV[row[3]]
    reindex(run_id, index_of(run_id), new)
    call('SET', P .. 'row:' .. run_id, text)
    if new[ROOT] ~= '' then
        call('HSET', P .. 'children', new[ID], run_id)
    end
end

-- The references of journals are counted for each blob; blobs without references are in `loose`, by age.
local function refer(run_id, blobs)
    for _, blob in ipairs(blobs) do
        if call('SADD', P .. 'refers:' .. run_id, blob) == 1 then
            call('HINCRBY', P .. 'blob:' .. blob, 'n', 1)
            call('ZREM', P .. 'loose', blob)
        end
    end
end

local function unrefer(run_id, blob)
    if call('SREM', P .. 'refers:' .. run_id, blob) == 1 and call('HINCRBY', P .. 'blob:' .. blob, 'n', -1) <= 0 then
        local put = call('HGET', P .. 'blob:' .. blob, 't')
        if put then
            call('ZADD', P .. 'loose', put, blob)
        else
            call('DEL', P .. 'blob:' .. blob) -- it never was in this store
        end
    end
end
