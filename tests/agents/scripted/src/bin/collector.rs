//! The collector as a program: prints its address, then every report as a line of JSON.

use std::fs::File;
use std::io::Write;
use std::process::ExitCode;

use scripted_agent::collector::Collector;

const USAGE: &str = "usage: collector [ADDRESS] [FILE]
Listens on ADDRESS (127.0.0.1:0), prints the address it got as its first line, then writes every report with the time
it was received as a line of JSON to FILE, or to stdout.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.len() > 2 || arguments.iter().any(|argument| argument.starts_with('-')) {
        eprintln!("{USAGE}");
        return ExitCode::from(64);
    }
    let address = arguments.first().map_or("127.0.0.1:0", String::as_str);
    let collector = match Collector::start(address) {
        Ok(collector) => collector,
        Err(error) => {
            eprintln!("collector: cannot listen on {address}: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut out: Box<dyn Write> = match arguments.get(1).map(File::create).transpose() {
        Ok(Some(file)) => Box::new(file),
        Ok(None) => Box::new(std::io::stdout()),
        Err(error) => {
            eprintln!("collector: cannot write: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("{}", collector.address());
    collector.follow(|event| {
        let written = writeln!(out, "{}", event.line()).and_then(|()| out.flush());
        if let Err(error) = written {
            eprintln!("collector: cannot write: {error}");
            std::process::exit(1);
        }
    })
}
