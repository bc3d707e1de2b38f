//! Manual pages from the flag tables of our programs: one for each command, in section 1.

#![forbid(unsafe_code)]

use clap::Command;
use clap_mangen::Man;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

const MANUAL: &str = "Tidepool";

/// Writes the pages of a program and of all its commands but hidden ones, `tidepool-stage-submit.1` for example; how many.
pub fn write_pages(program: Command, dir: &Path) -> io::Result<usize> {
    fs::create_dir_all(dir)?;
    // Pages about 'help' would say nothing.
    let mut program = program.disable_help_subcommand(true);
    program.build();
    let source = format!("{} {}", program.get_name(), program.get_version().unwrap_or_default());
    write_below(&program, source.trim_end(), dir)
}

fn write_below(command: &Command, source: &str, dir: &Path) -> io::Result<usize> {
    let mut count = 1;
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        count += write_below(below, source, dir)?;
    }
    let man = Man::new(command.clone()).manual(MANUAL).source(source);
    let mut file = BufWriter::new(File::create(dir.join(man.get_filename()))?);
    write_page(command, &man, &mut file)?;
    file.flush()?;
    Ok(count)
}

fn write_page(command: &Command, man: &Man, to: &mut impl Write) -> io::Result<()> {
    man.render_title(to)?;
    man.render_name_section(to)?;
    man.render_synopsis_section(to)?;
    man.render_description_section(to)?;
    man.render_options_section(to)?;
    if command.get_subcommands().any(|below| !below.is_hide_set()) {
        man.render_subcommands_section(to)?;
    }
    if let Some(text) = command.get_after_long_help().or_else(|| command.get_after_help()) {
        write_notes(&text.to_string(), to)?;
    }
    Ok(())
}

/// What stands below a command's help, line by line as it stands there.
fn write_notes(text: &str, to: &mut impl Write) -> io::Result<()> {
    writeln!(to, ".SH NOTES\n.nf")?;
    text.lines().try_for_each(|line| writeln!(to, "{}", plain(line)))?;
    writeln!(to, ".fi")
}

/// A line in which nothing means anything to roff.
fn plain(line: &str) -> String {
    let escaped = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    // A line that starts with a dot would be a request; an empty one is drawn by some as a page of blanks.
    if escaped.starts_with('.') || escaped.is_empty() { format!("\\&{escaped}") } else { escaped }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Arg, Command};

    #[test]
    fn each_command_but_hidden_ones_has_a_page_with_its_examples() {
        let below = Command::new("go")
            .about("Goes")
            .arg(Arg::new("far").long("far").help("How far"))
            .after_help("Examples:\n  prog go --far 1\\2\n.not a request");
        let program = Command::new("prog")
            .about("A program")
            .subcommand(below)
            .subcommand(Command::new("secret").hide(true));
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(write_pages(program, &dir.path().join("new")).unwrap(), 2);
        let mut names: Vec<_> =
            fs::read_dir(dir.path().join("new")).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["prog-go.1", "prog.1"]);
        let page = fs::read_to_string(dir.path().join("new/prog-go.1")).unwrap();
        assert!(page.contains("\n  prog go \\-\\-far 1\\e2\n\\&.not a request\n.fi\n"), "{page}");
        assert!(page.contains("How far") && page.contains("\\fBprog go\\fR"), "{page}");
    }
}
