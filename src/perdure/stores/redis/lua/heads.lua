-- Where journals end.

local answers = {}
for i, run_id in ipairs(arguments()) do
    answers[i] = call('HGET', P .. 'head:' .. run_id, 'n')
end
return answers
