-- Every queue in numbers. Goes through all queued runs: for people, not for engines.

local names, answers = {}, {}
for _, set in ipairs({ 'queued', 'busy' }) do
    for _, queue in ipairs(call('SMEMBERS', P .. set)) do
        names[queue] = true
    end
end
for queue in pairs(names) do
    local oldest = false
    local ready = call('ZRANGE', P .. 'ready:' .. queue, 0, -1)
    for _, member in ipairs(ready) do
        local _, created = split(member)
        if not oldest or tonumber(created) < tonumber(oldest) then
            oldest = created
        end
    end
    answers[#answers + 1] = { queue, #ready, tonumber(call('HGET', P .. 'under:' .. queue, 'n') or 0), oldest }
end
return answers
