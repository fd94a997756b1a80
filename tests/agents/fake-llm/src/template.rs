//! `{{...}}` in scripted texts.
//!
//! | form | becomes |
//! | --- | --- |
//! | `{{sha256:TEXT}}` | the lower-case hex digest of TEXT, which may hold further forms |
//! | `{{NAME}}`, `{{1}}` | what the rule's regular expressions captured under that name or number |
//! | `{{prompt}}` | the user text that was matched |
//! | `{{toolResult}}` | the newest tool result, trimmed |
//! | `{{cwd}}` | the agent's working directory, as its own system text states it |
//!
//! Values are inserted as they are: braces in them are never expanded again.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

/// The values forms are replaced by.
pub type Values = BTreeMap<String, String>;

/// Lower-case hex of the SHA-256 of `text`.
pub fn sha256_hex(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Replaces every form in `template`.
///
/// # Errors
/// Names the form that is unknown or not closed.
pub fn expand(template: &str, values: &Values) -> Result<String, String> {
    let mut rest = template;
    let out = until_close(&mut rest, values, false)?;
    Ok(out)
}

/// Expands up to the closing braces (`inside`) or the end.
fn until_close(rest: &mut &str, values: &Values, inside: bool) -> Result<String, String> {
    let mut out = String::new();
    loop {
        if inside && let Some(after) = rest.strip_prefix("}}") {
            *rest = after;
            return Ok(out);
        }
        if let Some(after) = rest.strip_prefix("{{") {
            *rest = after;
            out.push_str(&form(rest, values)?);
            continue;
        }
        let Some(next) = rest.chars().next() else {
            return if inside { Err("a {{ form is not closed".to_owned()) } else { Ok(out) };
        };
        out.push(next);
        *rest = &rest[next.len_utf8()..];
    }
}

/// Expands one form, its opening braces already taken.
fn form(rest: &mut &str, values: &Values) -> Result<String, String> {
    if let Some(after) = rest.strip_prefix("sha256:") {
        *rest = after;
        return Ok(sha256_hex(&until_close(rest, values, true)?));
    }
    let Some(end) = rest.find("}}") else {
        return Err("a {{ form is not closed".to_owned());
    };
    let name = &rest[..end];
    *rest = &rest[end + 2..];
    values.get(name).cloned().ok_or_else(|| format!("unknown form {{{{{name}}}}}"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn values() -> Values {
        [("nonce", "abc"), ("1", "x{{nonce}}"), ("empty", "")].map(|(k, v)| (k.to_owned(), v.to_owned())).into()
    }

    /// The digest of `abc` is the test vector of FIPS 180-2.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[rstest]
    #[case::plain("no form { here }", "no form { here }")]
    #[case::literal_digest("<{{sha256:abc}}>", &format!("<{ABC}>"))]
    #[case::nested("{{sha256:{{nonce}}}}", ABC)]
    #[case::nested_between("{{sha256:a{{empty}}bc}}", ABC)]
    #[case::value_not_expanded_again("{{1}}", "x{{nonce}}")]
    #[case::shell_braces("echo ${HOME} }}", "echo ${HOME} }}")]
    fn expands(#[case] template: &str, #[case] expected: &str) {
        assert_eq!(expand(template, &values()).as_deref(), Ok(expected));
    }

    #[rstest]
    #[case::unknown("{{nope}}", "nope")]
    #[case::open("{{nonce", "not closed")]
    #[case::open_digest("{{sha256:abc", "not closed")]
    fn refuses(#[case] template: &str, #[case] says: &str) {
        let error = expand(template, &values()).unwrap_err();
        assert!(error.contains(says), "{error}");
    }
}
