-- Slurm's burst-buffer hooks (burst_buffer/lua, Slurm 22.05 and later) for Tidepool's directives.
--
-- Everything is done by `tidepool slurm hook NAME`, which prints what slurmctld is to know and, at its very end,
-- "hook: done" or "hook: failed". Without either it was killed, and that counts as a failure: Slurm ends the process
-- first and Lua a moment later, so that the result of os.execute() alone could not be trusted.
-- Written by `tidepool slurm install`: changes belong into the original.

local TIDEPOOL = "@TIDEPOOL@"
local SITE = "@SITE@"
local PIPES = "@PIPES@"

-- Lua 5.2 and later have it elsewhere.
local unpack = unpack or table.unpack

local function quoted(word)
	return "'" .. string.gsub(word, "'", "'\\''") .. "'"
end

local function plain(word)
	return type(word) == "string" and string.find(word, "^[%w_%.-]+$") ~= nil
end

-- Other hooks' pipes, which slurmscriptd may have handed on to this process: Slurm waits for whoever has them.
local function let_go()
	local close, why = package.loadlib(PIPES, "tidepool_let_go")
	if close == nil then
		slurm.log_error("tidepool: jobs may have to wait for each other's hooks: %s", tostring(why))
	else
		close()
	end
end

-- Runs a hook; the result for Slurm, and the text.
local function hook(name, ...)
	local words = { quoted(TIDEPOOL), "slurm", "hook", "--site", quoted(SITE), name }
	for _, word in ipairs({ ... }) do
		words[#words + 1] = quoted(word)
	end
	local pipe, why = io.popen(table.concat(words, " ") .. " 2>&1", "r")
	if pipe == nil then
		return slurm.ERROR, "cannot run " .. TIDEPOOL .. ": " .. tostring(why)
	end
	local text = pipe:read("*a") or ""
	pipe:close()
	local said, verdict = string.match(text, "^(.-)%s*hook: (%a+)%s*$")
	if verdict == "done" then
		return slurm.SUCCESS, said
	end
	said = said or string.match(text, "^(.-)%s*$")
	if said == "" then
		said = "tidepool slurm hook " .. name .. " was ended"
	end
	slurm.log_info("tidepool: hook %s: %s", name, said)
	return slurm.ERROR, said
end

-- Slurm itself refuses an empty second value for some calls, so a success says nothing.
local function quietly(name, ...)
	local result, said = hook(name, ...)
	if result == slurm.SUCCESS then
		return slurm.SUCCESS
	end
	return result, said
end

-- The same in a process that slurmscriptd has forked for it.
local function apart(name, ...)
	let_go()
	return quietly(name, ...)
end

-- These two are called while slurmctld waits, in slurmctld itself: they look at files only.
function slurm_bb_job_process(script)
	return quietly("job-process", script)
end

function slurm_bb_paths(job, script, path_file)
	return quietly("paths", tostring(job), path_file)
end

-- Called every half a minute or so: jobs that slurmctld has lost, by being killed before it had saved them, are swept up
-- in the background.
function slurm_bb_pools()
	os.execute(quoted(TIDEPOOL) .. " slurm sweep --site " .. quoted(SITE) .. " </dev/null >/dev/null 2>&1 &")
	return slurm.SUCCESS
end

function slurm_bb_setup(job, uid, gid)
	return apart("setup", tostring(job), tostring(uid), tostring(gid))
end

function slurm_bb_data_in(job)
	return apart("data-in", tostring(job))
end

-- Slurm 24.11 and later ask whether a data_in or data_out that left something to the background is done. Ours do not.
function slurm_bb_test_data_in()
	return slurm.SUCCESS
end

function slurm_bb_test_data_out()
	return slurm.SUCCESS
end

function slurm_bb_real_size()
	return slurm.SUCCESS, 0
end

function slurm_bb_pre_run(job)
	return apart("pre-run", tostring(job))
end

function slurm_bb_post_run(job)
	return apart("post-run", tostring(job))
end

function slurm_bb_data_out(job)
	return apart("data-out", tostring(job))
end

function slurm_bb_job_teardown(job, script, hurry)
	return apart("teardown", tostring(job), tostring(hurry))
end

-- `scontrol show bbstat WORDS`: what `tidepool slurm` and `tidepool workflow` ask where the controller's book is not.
function slurm_bb_get_status(...)
	local words = {}
	for _, word in ipairs({ ... }) do
		-- Slurm 23.02 and later say first who asks, in numbers; no question of ours begins with one.
		local who = #words == 0 and tonumber(word) ~= nil
		if not who and not plain(word) then
			return slurm.ERROR, "words of letters and digits are known only"
		end
		if not who then
			words[#words + 1] = word
		end
	end
	let_go()
	return hook("status", unpack(words))
end

return slurm.SUCCESS
