-- Append to many journals: each append wholly or not at all, by compare and swap. The answer is the number of commits, and
-- for each append 1, or a list that says what stood in the way.

local RUN, EXPECTED, NEXT, AT, SIZE, ENTRIES, ROW, CHILDREN, STARTS, BLOBS, ADMIT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
local DEADLINE = 12
local wrote = false

-- Why a run of a queue may not begin, by all that has begun; nil when it may.
local function refusal(limits, x)
    local concurrency, per_key, starts, after, before = limits[1], limits[2], limits[3], limits[4], limits[5]
    local under = P .. 'under:' .. x[QUEUE]
    if concurrency and tonumber(call('HGET', under, 'n') or 0) >= concurrency then
        return { 3 }
    end
    if per_key and tonumber(call('HGET', under, 'k' .. x[KEY]) or 0) >= per_key then
        return { 3 }
    end
    if starts then
        local nth = call(
            'ZREVRANGEBYSCORE', P .. 'starts:' .. x[QUEUE], '(' .. before, '(' .. after, 'WITHSCORES', 'LIMIT',
            starts - 1, 1
        )
        if nth[2] then
            return { 3, nth[2] }
        end
    end
    return nil
end

-- Whether another run has this id, in this incarnation or a later one.
local function taken(x)
    local latest = call('HGET', P .. 'ids', x[ID])
    if not latest or call('EXISTS', P .. 'row:' .. latest) == 0 then
        return false
    end
    local found = index_of(latest)
    return not found or found[INCARNATION] >= x[INCARNATION], latest
end

local function append(one)
    local run_id, row = one[RUN], one[ROW]
    local head, journal = P .. 'head:' .. run_id, P .. 'journal:' .. run_id
    local next_seq = tonumber(call('HGET', head, 'n') or 0)
    if next_seq ~= one[EXPECTED] then
        return { 2, next_seq }
    end
    local before
    if next_seq == 0 and row then
        local refused
        refused, before = taken(row[2])
        if refused then
            return { 2 }
        end
    end
    if one[ADMIT] and row then
        local full = refusal(one[ADMIT], row[2])
        if full then
            return full
        end
    end
    wrote = true
    for _, entry in ipairs(one[ENTRIES]) do
        call('RPUSH', journal, ARGV[entry])
    end
    call('HINCRBY', head, 's', one[SIZE])
    call('HSET', head, 'n', one[NEXT], 't', one[AT])
    if next_seq == 0 then
        call('ZADD', P .. 'journals', 0, run_id)
        if row then
            call('HSET', P .. 'ids', row[2][ID], run_id)
            if before then
                call('HSET', P .. 'before', run_id, before)
            end
        end
    end
    if row then
        put_row(row)
        if one[DEADLINE] and not row[2][FINISHED] then
            call('ZADD', P .. 'deadlines:' .. row[2][PROGRAM], one[DEADLINE], run_id)
        end
    end
    for _, child in ipairs(one[CHILDREN]) do
        put_row(child)
    end
    refer(run_id, one[BLOBS])
    for _, start in ipairs(one[STARTS]) do
        append(start) -- a run that exists was started before: skip it
    end
    return 1
end

local token, appends = unpack(arguments())
if call('EXISTS', P .. 'void:' .. token) == 1 then
    return { -1 } -- the sender got no answer, has settled the append, and has acted on the outcome
end
local answers = { 0 }
for i, one in ipairs(appends) do
    answers[i + 1] = append(one)
end
answers[1] = wrote and notify() or commits()
return answers
