//! Looking at and changing a pool without interception or mount.

use crate::exit::{Context, Failure, Kind, Result};
use crate::flags::{CatArgs, LsArgs, MkdirArgs, RmArgs};
use crate::instance;
use serde_json::json;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use tidepool_client::{Client, Cred, DirEntry};
use tidepool_types::{Attr, Errno, FileKind, Ino};

/// Bytes read at a time.
const READ_STEP: usize = 4 << 20;

/// The rights of the user of this command.
pub fn own_cred() -> Cred {
    Cred {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        groups: rustix::process::getgroups().unwrap_or_default().iter().map(|g| g.as_raw()).collect(),
        umask: current_umask(),
    }
}

/// The umask as the kernel shows it; reading it by umask(2) would change it for a moment.
fn current_umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("Umask:"));
    line.and_then(|text| u32::from_str_radix(text.trim(), 8).ok()).unwrap_or(0o022)
}

/// A path in the pool, relative to its root.
pub fn inside(path: &Path) -> &[u8] {
    let bytes = path.as_os_str().as_bytes();
    let start = bytes.iter().position(|b| *b != b'/').unwrap_or(bytes.len());
    &bytes[start..]
}

pub fn stat(client: &Client, path: &Path, follow: bool) -> Result<Attr> {
    let found = client.stat(Ino::ROOT, inside(path), follow, &own_cred());
    found.and_then(tidepool_client::Walk::inside).context(Kind::Other, || path.display().to_string())
}

pub fn ls(args: &LsArgs) -> Result<ExitCode> {
    let client = instance::find(&args.choice)?.client()?;
    let attr = stat(&client, &args.path, true)?;
    let long = args.long || args.json;
    let mut entries: Vec<(DirEntry, Option<Attr>)> = if !attr.is_dir() {
        let name = args.path.file_name().unwrap_or_default().as_bytes().to_vec();
        vec![(DirEntry { name, ino: attr.ino, kind: attr.kind() }, Some(attr))]
    } else if long {
        look_closer(&client, attr.ino, client.read_dir_plus(attr.ino)?)?
    } else {
        client.read_dir(attr.ino)?.into_iter().map(|entry| (entry, None)).collect()
    };
    entries.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
    let mut out = std::io::stdout().lock();
    for (entry, attr) in &entries {
        let line = match attr {
            Some(attr) if long => long_line(&client, &entry.name, attr, args.json)?,
            _ => entry.name.clone(),
        };
        let written = out.write_all(&line).and_then(|()| out.write_all(b"\n"));
        written.context(Kind::Other, || "writing".into())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Looks names up again whose objects had gone: those that have gone as well are left out, the others are damaged or new.
fn look_closer(
    client: &Client,
    dir: Ino,
    listed: Vec<(DirEntry, Option<Attr>)>,
) -> Result<Vec<(DirEntry, Option<Attr>)>> {
    let mut entries = Vec::with_capacity(listed.len());
    for (entry, attr) in listed {
        match attr.map_or_else(|| client.lookup(dir, &entry.name), Ok) {
            Ok(attr) => entries.push((entry, Some(attr))),
            Err(error) if error.errno() == Errno::ENOENT => {}
            Err(error) => {
                return Err(error).context(Kind::Other, || String::from_utf8_lossy(&entry.name).into_owned());
            }
        }
    }
    Ok(entries)
}

fn long_line(client: &Client, name: &[u8], attr: &Attr, as_json: bool) -> Result<Vec<u8>> {
    if as_json {
        let value = json!({
            "name": String::from_utf8_lossy(name), "ino": attr.ino.0, "mode": format!("{:o}", attr.st_mode()),
            "nlink": attr.nlink, "uid": attr.uid, "gid": attr.gid, "size": attr.size,
            "mtime": attr.mtime.sec, "kind": format!("{:?}", attr.kind()),
        });
        return Ok(value.to_string().into_bytes());
    }
    let mut line = format!(
        "{} {:>3} {:>6} {:>6} {:>12} {:>12} ",
        mode_text(attr),
        attr.nlink,
        attr.uid,
        attr.gid,
        attr.size,
        attr.mtime.sec
    )
    .into_bytes();
    line.extend_from_slice(name);
    if attr.kind() == FileKind::Symlink {
        line.extend_from_slice(b" -> ");
        line.extend_from_slice(&client.read_link(attr.ino)?);
    }
    Ok(line)
}

fn mode_text(attr: &Attr) -> String {
    let kind = match attr.kind() {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
    };
    let bits = "rwxrwxrwx".char_indices();
    let rights = bits.map(|(i, c)| if attr.mode & (0o400 >> i) != 0 { c } else { '-' });
    std::iter::once(kind).chain(rights).collect()
}

pub fn cat(args: &CatArgs) -> Result<ExitCode> {
    let client = instance::find(&args.choice)?.client()?;
    for path in &args.paths {
        let found = client.open(Ino::ROOT, inside(path), libc::O_RDONLY, 0, &own_cred());
        let attr = found
            .and_then(tidepool_client::Walk::inside)
            .context(Kind::Other, || path.display().to_string())?;
        if attr.is_dir() {
            return Err(Failure::new(Kind::Other, format!("{}: {}", path.display(), Errno::EISDIR.text())));
        }
        let copied = copy_to_stdout(&client, attr.ino);
        client.release(attr.ino);
        copied.context(Kind::Other, || path.display().to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn copy_to_stdout(client: &Client, ino: Ino) -> std::result::Result<(), String> {
    let mut buf = vec![0; READ_STEP];
    let mut out = std::io::stdout().lock();
    let mut offset = 0;
    loop {
        let count = client.read(ino, offset, &mut buf).map_err(|e| e.to_string())?;
        if count == 0 {
            return out.flush().map_err(|e| e.to_string());
        }
        out.write_all(&buf[..count]).map_err(|e| e.to_string())?;
        offset += count as u64;
    }
}

pub fn mkdir(args: &MkdirArgs) -> Result<ExitCode> {
    let client = instance::find(&args.choice)?.client()?;
    for path in &args.paths {
        make_dir(&client, path, args.parents).context(Kind::Other, || path.display().to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes a directory; with `parents`, those above it as well, and existing ones are fine.
pub fn make_dir(
    client: &Client,
    path: &Path,
    parents: bool,
) -> std::result::Result<(), tidepool_client::FsError> {
    let made = client.mkdir(Ino::ROOT, inside(path), 0o777, &own_cred()).map(|_| ());
    match made {
        Err(error) if parents && error.errno() == Errno::EEXIST => Ok(()),
        Err(error) if parents && error.errno() == Errno::ENOENT => match path.parent() {
            Some(above) if above != path => {
                make_dir(client, above, true)?;
                make_dir(client, path, true)
            }
            _ => Err(error),
        },
        other => other,
    }
}

pub fn rm(args: &RmArgs) -> Result<ExitCode> {
    let client = instance::find(&args.choice)?.client()?;
    for path in &args.paths {
        let attr = stat(&client, path, false)?;
        if attr.is_dir() && !args.recursive {
            let text = format!("{}: is a directory; remove it and all in it with -r", path.display());
            return Err(Failure::new(Kind::Usage, text));
        }
        remove(&client, path, attr.ino, attr.kind(), args.dry_run)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn remove(client: &Client, path: &Path, ino: Ino, kind: FileKind, dry_run: bool) -> Result<()> {
    let is_dir = kind == FileKind::Directory;
    if is_dir {
        for entry in client.read_dir(ino)? {
            let below = path.join(std::ffi::OsStr::from_bytes(&entry.name));
            remove(client, &below, entry.ino, entry.kind, dry_run)?;
        }
    }
    if dry_run {
        println!("would remove {}", path.display());
        return Ok(());
    }
    if ino == Ino::ROOT {
        return Ok(());
    }
    let removed = if is_dir {
        client.rmdir(Ino::ROOT, inside(path), &own_cred())
    } else {
        client.unlink(Ino::ROOT, inside(path), &own_cred())
    };
    removed.map(|_| ()).context(Kind::Other, || path.display().to_string())
}
