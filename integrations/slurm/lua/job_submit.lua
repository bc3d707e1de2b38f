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

-- The options that are set, as lines "option NAME VALUE".
local function options_of(job)
	local lines = {}
	if job.environment == nil then
		return lines
	end
	for _, name in ipairs(OPTIONS) do
		local value = job.environment["_SLURM_SPANK_OPTION_tidepool_" .. string.gsub(name, "-", "_")]
		if value ~= nil then
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

-- Lines of what the hook says: "add LINE", "dependency TEXT", "nodes LIST", "say TEXT".
local function apply(job, said)
	local added = {}
	for key, value in string.gmatch(said, "(%a+) ([^\n]*)") do
		if key == "add" then
			added[#added + 1] = value
		elseif key == "dependency" then
			job.dependency = value
		elseif key == "nodes" then
			job.req_nodes = value
		elseif key == "say" then
			slurm.log_user("tidepool: %s", value)
		end
	end
	if #added == 0 then
		return
	end
	local lines = table.concat(added, "\n")
	if job.script ~= nil then
		local first, rest = string.match(job.script, "^([^\n]*\n)(.*)$")
		job.script = (first or job.script .. "\n") .. lines .. "\n" .. (rest or "")
	else
		job.burst_buffer = (job.burst_buffer ~= nil and job.burst_buffer .. "\n" or "") .. lines
	end
end

function slurm_job_submit(job, partitions, uid)
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
	os.remove(script)
	local lines, verdict = string.match(said, "^(.-)hook: (%a+)%s*$")
	if verdict == "done" then
		apply(job, lines)
		return slurm.SUCCESS
	end
	for line in string.gmatch(lines or said, "[^\n]+") do
		slurm.log_user("tidepool: %s", (string.gsub(line, "^say ", "")))
	end
	if (lines or said) == "" then
		slurm.log_user("tidepool: the directives could not be checked; tell your administrator")
	end
	return slurm.ERROR
end

function slurm_job_modify()
	return slurm.SUCCESS
end

return slurm.SUCCESS
