-- Slurm's job_submit hook: has the directives of a job's script, and the options of Tidepool's SPANK plug-in, checked
-- before the job is accepted. Jobs without either cost one search in their script.
-- Written by `tidepool slurm install`: changes belong into the original.

local TIDEPOOL = "@TIDEPOOL@"
local SITE = "@SITE@"

-- Options of the SPANK plug-in, as sbatch hands them on in the job's environment.
local OPTIONS = { "tidepool", "workflow-start", "workflow-prior-dependency", "workflow-end", "workflow-same-nodes" }

local function quoted(word)
	return "'" .. string.gsub(word, "'", "'\\''") .. "'"
end

local function has_directive(text)
	return text ~= nil
		and (string.find(text, "#NORNS", 1, true) ~= nil or string.find(text, "#TIDEPOOL", 1, true) ~= nil)
end

-- What was said of an option: sbatch has it in the job's environment, srun and salloc in what is for prologs only.
local function value_of(job, name)
	local variable = "_SLURM_SPANK_OPTION_tidepool_" .. string.gsub(name, "-", "_")
	if job.script ~= nil then
		return job.environment ~= nil and job.environment[variable] or nil
	end
	for _, one in pairs(type(job.spank_job_env) == "table" and job.spank_job_env or {}) do
		local key, value = string.match(tostring(one), "^([^=]*)=(.*)$")
		if key == variable or key == "SPANK_" .. variable then
			return value
		end
	end
	return nil
end

-- The options that are set, as lines "option NAME VALUE".
local function options_of(job)
	local lines = {}
	for _, name in ipairs(OPTIONS) do
		local value = value_of(job, name)
		if value ~= nil then
			-- As C prints what was not given.
			value = value == "(null)" and "" or value
			lines[#lines + 1] = "option " .. name .. " " .. string.gsub(value, "\n", " ")
		end
	end
	return lines
end

-- Writes a file of this process's own; its name.
local function written(text)
	local name = os.tmpname()
	local file = io.open(name, "w")
	if file == nil then
		return nil
	end
	file:write(text)
	file:close()
	return name
end

-- The whole of a file.
local function read(name)
	local file = io.open(name, "r")
	if file == nil then
		return nil
	end
	local text = file:read("*a")
	file:close()
	return text
end

-- Does what the hook's lines say: "dependency TEXT", "script rewritten", "say TEXT".
local function apply(job, said, script)
	for key, value in string.gmatch(said, "(%a+) ([^\n]*)") do
		if key == "dependency" then
			job.dependency = value
		elseif key == "say" then
			slurm.log_user("tidepool: %s", value)
		elseif key == "script" then
			if job.script ~= nil then
				job.script = read(script)
			else
				job.burst_buffer = read(script)
			end
			-- By this word the prolog knows that it has to test the nodes.
			if job.comment == nil or job.comment == "" then
				job.comment = "tidepool"
			elseif string.find("," .. job.comment .. ",", "[^%w_-]tidepool[^%w_-]") == nil then
				job.comment = job.comment .. ",tidepool"
			end
		end
	end
end

-- Who waits for a job to end well waits for its results, too: by itself Slurm takes the end of the program for it.
local function wait_for_results(job)
	local wanted = job.dependency
	if wanted == nil or string.find(wanted, "?", 1, true) or string.find(wanted, "afterburstbuffer", 1, true) then
		return
	end
	for jobs in string.gmatch(wanted, "afterok:([%d:]+)") do
		job.dependency = job.dependency .. ",afterburstbuffer:" .. jobs
	end
end

-- The job that a reservation of these hooks holds nodes for; nil for others. They are called tidepool-JOB.
local function reserved_for(name)
	return tonumber(string.match(name, "^tidepool%-(%d+)$"))
end

-- False, with a word to the user, where a job wants into nodes that are held for another one, also for one of the same user's.
local function may_use_reservations(wanted, job)
	for name in string.gmatch(wanted or "", "[^,%s]+") do
		local of = reserved_for(name)
		if of ~= nil and of ~= job then
			slurm.log_user("tidepool: %s holds nodes for job %d alone", name, of)
			return false
		end
	end
	return true
end

function slurm_job_submit(job, partitions, uid)
	if not may_use_reservations(job.reservation, nil) then
		return slurm.ERROR
	end
	wait_for_results(job)
	local options = options_of(job)
	local text = job.script or job.burst_buffer
	if #options == 0 and not has_directive(text) then
		return slurm.SUCCESS
	end
	local request = { "uid " .. tostring(job.user_id ~= nil and job.user_id ~= slurm.NO_VAL and job.user_id or uid) }
	if job.dependency ~= nil then
		request[#request + 1] = "dependency " .. job.dependency
	end
	if job.array_inx ~= nil then
		request[#request + 1] = "array " .. job.array_inx
	end
	if job.max_nodes ~= nil and job.max_nodes ~= slurm.NO_VAL then
		request[#request + 1] = "nodes " .. tostring(math.floor(job.max_nodes))
	end
	request[#request + 1] = "kind " .. (job.script ~= nil and "script" or "command")
	for _, line in ipairs(options) do
		request[#request + 1] = line
	end
	local asked, script = written(table.concat(request, "\n") .. "\n"), written(text or "")
	if asked == nil or script == nil then
		slurm.log_user("tidepool: no temporary file can be written on the controller")
		return slurm.ERROR
	end
	local words = { quoted(TIDEPOOL), "slurm", "hook", "--site", quoted(SITE), "submit", quoted(asked), quoted(script) }
	local pipe = io.popen(table.concat(words, " ") .. " 2>&1", "r")
	local said = pipe ~= nil and pipe:read("*a") or ""
	if pipe ~= nil then
		pipe:close()
	end
	os.remove(asked)
	local lines, verdict = string.match(said, "^(.-)hook: (%a+)%s*$")
	if verdict == "done" then
		apply(job, lines, script)
		os.remove(script)
		return slurm.SUCCESS
	end
	os.remove(script)
	for line in string.gmatch(lines or said, "[^\n]+") do
		slurm.log_user("tidepool: %s", (string.gsub(line, "^say ", "")))
	end
	if (lines or said) == "" then
		slurm.log_user("tidepool: the directives could not be checked; tell your administrator")
	end
	return slurm.ERROR
end

function slurm_job_modify(change, job)
	return may_use_reservations(change.reservation, job.job_id) and slurm.SUCCESS or slurm.ERROR
end

return slurm.SUCCESS
