//! Reports as pages: one file each, with nothing to load.

const STYLE: &str = "body{font:15px sans-serif;margin:2em;max-width:70em}table{border-collapse:collapse;width:100%}\
td,th{text-align:left;padding:.2em .6em;border-bottom:1px solid #ddd}";

/// A page; title and body are HTML already.
pub fn page(title: &str, style: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>{title}</title><style>{STYLE}{style}</style></head><body>\n\
         {body}</body></html>\n"
    )
}

/// Text of users, among them paths, in a page.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('\'', "&#39;")
        .replace('"', "&quot;")
}
