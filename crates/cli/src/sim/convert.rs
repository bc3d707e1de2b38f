//! `tidepool sim convert`: traces of other tools become requests for the simulator.

use super::files::{keep, lines};
use super::inputs_flags::ConvertArgs;
use crate::bench::report::identity;
use crate::exit::{Context, Failure, Kind, Result};
use crate::trace::requests;
use std::path::Path;
use std::process::ExitCode;
use tidepool_io_traces::recorded::Recordings;
use tidepool_io_traces::{DETECT_BYTES, Format, Options, Trace, detect, is_requests, read};

pub fn convert(args: &ConvertArgs) -> Result<ExitCode> {
    let (format, trace) = if args.input.is_dir() {
        if let Some(format) = args.from.filter(|format| *format != Format::Tidepool) {
            let text = format!("{}: a directory, which holds no {format} trace", args.input.display());
            return Err(Failure::new(Kind::Usage, text));
        }
        (Format::Tidepool, recordings(&args.input)?)
    } else {
        one(args)?
    };
    keep(&args.out, |out| trace.write(out))?;
    let told = args.from.is_none();
    if args.json {
        let mut all = identity("sim-convert");
        all["format"] = format.name().into();
        all["detected"] = told.into();
        all["trace"] = requests::value(&trace);
        println!("{all}");
    } else {
        let how = if told { " (as its first lines tell)" } else { "" };
        print!("format: {format}{how}\n{}", requests::text(&trace));
    }
    Ok(ExitCode::SUCCESS)
}

fn one(args: &ConvertArgs) -> Result<(Format, Trace)> {
    let what = || args.input.display().to_string();
    let mut from = lines(&args.input).context(Kind::Usage, what)?;
    let format = match args.from {
        Some(format) => format,
        None => {
            let beginning = from.fill_buf().context(Kind::Usage, what)?;
            let beginning = &beginning[..beginning.len().min(DETECT_BYTES)];
            detect(beginning).ok_or_else(|| {
                if is_requests(beginning) {
                    let text = format!(
                        "{}: these are requests already: go on with 'tidepool sim experiment'",
                        what()
                    );
                    return Failure::new(Kind::Usage, text);
                }
                let formats = Format::ALL.map(Format::name).join(", ");
                let text = format!(
                    "{}: its first lines are of no format that is known; name it: --from {formats}",
                    what()
                );
                Failure::new(Kind::Usage, text)
            })?
        }
    };
    let options = Options { under: args.under.clone(), lanes: args.lanes };
    let trace = read(format, from, &options).context(Kind::Usage, || format!("{} ({format})", what()))?;
    Ok((format, trace))
}

/// All recordings of a directory, as one trace.
pub fn recordings(dir: &Path) -> Result<Trace> {
    let what = |path: &Path| path.display().to_string();
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).context(Kind::Usage, || what(dir))? {
        let path = entry.context(Kind::Usage, || what(dir))?.path();
        if path.extension().is_some_and(|end| end == "io") {
            files.push(path);
        }
    }
    files.sort();
    let mut all = Recordings::default();
    for path in &files {
        let from = lines(path).context(Kind::Usage, || what(path))?;
        all.add(from).context(Kind::Usage, || what(path))?;
    }
    all.end().context(Kind::Usage, || format!("{} ({} recordings)", what(dir), files.len()))
}
