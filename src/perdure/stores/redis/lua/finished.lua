-- The rows of those runs that have ended or are parked; of damaged ones too.

local answers = {}
for _, run_id in ipairs(arguments()) do
    local x = index_of(run_id)
    if not x or x[FINISHED] or x[STATUS] == 'parked' then
        local row = call('GET', P .. 'row:' .. run_id)
        if row then
            answers[#answers + 1] = { run_id, row }
        end
    end
end
return answers
