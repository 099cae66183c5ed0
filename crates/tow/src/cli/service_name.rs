//! Names of services on the command line: any bytes, if the user says so.

use crate::cli::exit::Failure;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use towpath_files::path::Escaped;

/// Interpretation of the argument `service` of a command.
#[derive(clap::Args)]
pub struct NameArgs {
    /// The name is base64, as in `service_b64`, for names that aren't UTF-8.
    #[arg(long, requires = "service")]
    b64: bool,
}

impl NameArgs {
    /// The service that an argument names.
    pub fn name(&self, given: &OsStr) -> Result<ServiceName, Failure> {
        let given = given.as_bytes();
        if !self.b64 {
            return Ok(ServiceName(given.to_vec()));
        }
        let wrong = |_| Failure::usage(format!("{}: not base64 with padding (--b64)", Escaped(given)));
        STANDARD.decode(given).map(ServiceName).map_err(wrong)
    }
}

/// Name of a service. Displayed on one line, and escaped: names that differ look different.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceName(Vec<u8>);

impl ServiceName {
    /// The name as the API's `service_b64` has it.
    pub fn base64(&self) -> String {
        STANDARD.encode(&self.0)
    }

    /// The name in a path of the API.
    pub fn in_path(&self) -> String {
        URL_SAFE_NO_PAD.encode(&self.0)
    }
}

impl AsRef<[u8]> for ServiceName {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Escaped(&self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_as_it_is_or_decoded() {
        let name = |b64, given: &[u8]| NameArgs { b64 }.name(OsStr::from_bytes(given));
        let shown = |b64, given: &[u8]| name(b64, given).unwrap().to_string();
        assert_eq!([shown(true, b"//4="), shown(true, b"/v8=")], ["\\xff\\xfe", "\\xfe\\xff"]);
        assert_eq!(name(true, b"//4=").unwrap(), name(false, b"\xff\xfe").unwrap());
        assert_eq!([shown(false, b"//4="), shown(false, b"\\xff\\xfe")], ["//4=", "\\\\xff\\\\xfe"]);
        assert!(name(true, b"\xff").unwrap_err().to_string().contains("not base64"));
    }
}
