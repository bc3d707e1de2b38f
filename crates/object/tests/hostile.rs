//! A service that is none: whatever it answers ends in an error, in little memory and soon.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use tidepool_object::{ObjectEnd, ObjectUrl};
use tidepool_stage::{End, Item};

/// Answers each request with the same status and body.
fn serve(status: &'static str, length: Option<usize>, body: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, body) = (client.unwrap(), body.clone());
            std::thread::spawn(move || answer(&mut client, status, length, &body));
        }
    });
    address
}

fn answer(client: &mut TcpStream, status: &str, length: Option<usize>, body: &[u8]) {
    let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
    while !seen.windows(4).any(|end| end == b"\r\n\r\n") {
        match client.read(&mut buffer) {
            Ok(count) if count > 0 => seen.extend_from_slice(&buffer[..count]),
            _ => return,
        }
    }
    let length = length.map(|length| format!("Content-Length: {length}\r\n")).unwrap_or_default();
    let _ = write!(client, "HTTP/1.1 {status}\r\n{length}Connection: close\r\n\r\n");
    let _ = client.write_all(body);
}

fn error_of(address: SocketAddr) -> String {
    let url: ObjectUrl =
        format!("s3://data/top?endpoint=http://{address}&anonymous=yes&patience=1").parse().unwrap();
    let start = Instant::now();
    let items = |end: ObjectEnd| -> Vec<Item> { end.list(&end.root(), &Default::default()).unwrap().0 };
    let error = match ObjectEnd::open(&url, b"t", false) {
        Ok(end) => panic!("it is no service: {:?}", items(end)),
        Err(error) => error.to_string(),
    };
    assert!(start.elapsed() < Duration::from_secs(60), "{error}");
    error
}

#[test]
fn answers_without_an_end_are_cut_off() {
    let huge = [b"<ListBucketResult>".to_vec(), vec![b' '; 64 << 20]].concat();
    let error = error_of(serve("200 OK", None, huge.clone()));
    assert!(error.contains("more than 16777216 bytes"), "{error}");
    let error = error_of(serve("503 Busy", None, huge));
    assert!(error.contains("more than 16777216 bytes"), "{error}");
}

#[test]
fn answers_that_are_torn_deep_or_no_xml_are_errors() {
    let whole = b"<ListBucketResult><Contents><Key>top/t/x</Key><Size>1</Size></Contents></ListBucketResult>";
    let torn = whole[..whole.len() - 30].to_vec();
    error_of(serve("200 OK", Some(whole.len()), torn.clone()));
    error_of(serve("200 OK", Some(torn.len()), torn));
    let deep = "<ListBucketResult>".to_string() + &"<Contents>".repeat(1_000_000);
    error_of(serve("200 OK", Some(deep.len()), deep.into()));
    let page = b"<html><body>Welcome to the captive portal</body>".to_vec();
    error_of(serve("200 OK", Some(page.len()), page));
}

#[test]
fn what_is_said_in_an_error_is_plain_text_of_a_bounded_length() {
    let long = format!("<Error><Code>Odd\x1b[31m</Code><Message>{}</Message></Error>", "x\n".repeat(100_000));
    let error = error_of(serve("400 Bad", Some(long.len()), long.into()));
    assert!(error.len() < 1000 && !error.chars().any(char::is_control), "{error}");
    assert!(error.contains("Odd[31m") && error.contains("bucket 'data'"), "{error}");
}

#[test]
fn a_service_that_is_not_there_is_named_with_what_was_tried() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = error_of(free);
    assert!(error.contains("refused") && error.contains("patience=1"), "{error}");
}
