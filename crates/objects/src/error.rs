//! Errors, by what to do about them.

use object_store::client::{HttpError, HttpErrorKind};
use std::error::Error as _;

/// A failed call.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{subject}: {}", self.words())]
pub struct Error {
    /// Its kind.
    pub kind: Kind,
    /// The bucket or object.
    subject: String,
    /// The store's own words; empty if there are none.
    detail: String,
}

/// Kinds of errors, by what to do about them.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// There is no such object.
    NotFound,
    /// There is no such bucket.
    NoBucket,
    /// The credentials don't allow it, or are wrong.
    Denied,
    /// The credentials were valid once.
    Expired,
    /// None were found.
    NoCredentials,
    /// The object isn't the version that was asked for.
    Changed,
    /// The object is archived, and has to be restored before it can be read.
    Archived,
    /// The store asks for fewer requests.
    SlowDown,
    /// The store can't be reached, or doesn't answer.
    Unreachable,
    /// A setting is wrong: endpoint, region, profile.
    Settings,
    /// Anything else.
    Other,
}

impl Kind {
    /// Whether the same call may succeed later without anybody doing something.
    pub fn is_passing(self) -> bool {
        matches!(self, Kind::SlowDown | Kind::Unreachable)
    }

    /// Words for people: what is wrong and what to do, without a subject.
    pub fn words(self) -> &'static str {
        match self {
            Kind::NotFound => "there is no such object",
            Kind::NoBucket => "there is no such bucket",
            Kind::Denied => "access denied: check the credentials and what they allow",
            Kind::Expired => "the credentials have expired: renew them",
            Kind::NoCredentials => {
                "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or ask for anonymous access"
            }
            Kind::Changed => "the object has been replaced",
            Kind::Archived => "the object is archived: restore it first",
            Kind::SlowDown => "the store asks for fewer requests",
            Kind::Unreachable => "the store can't be reached",
            Kind::Settings => "the settings are wrong",
            Kind::Other => "the request failed",
        }
    }

    /// The meaning of an error code of S3.
    fn of_code(code: &str) -> Option<Kind> {
        Some(match code {
            "NoSuchKey" | "NoSuchUpload" | "NoSuchVersion" => Kind::NotFound,
            "NoSuchBucket" | "InvalidBucketName" => Kind::NoBucket,
            "AccessDenied"
            | "InvalidAccessKeyId"
            | "SignatureDoesNotMatch"
            | "AllAccessDisabled"
            | "AccountProblem" => Kind::Denied,
            "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired" | "InvalidToken" | "RequestExpired" => {
                Kind::Expired
            }
            "PreconditionFailed" | "ConditionalRequestConflict" => Kind::Changed,
            "InvalidObjectState" => Kind::Archived,
            "SlowDown" | "RequestLimitExceeded" | "Throttling" | "ThrottlingException" | "TooManyRequests" => {
                Kind::SlowDown
            }
            "ServiceUnavailable" | "InternalError" | "RequestTimeout" => Kind::Unreachable,
            // Of a condition that the store doesn't know. Asking again doesn't help, whatever the status says.
            "NotImplemented" => Kind::Other,
            "PermanentRedirect" | "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException" => {
                Kind::Settings
            }
            _ => return None,
        })
    }
}

/// Address at which instances learn their roles.
const INSTANCE_METADATA: &str = "http://169.254.169.254/";

/// Longest part of a store's own words that is repeated.
const DETAIL_CHARS_MAX: usize = 300;

impl Error {
    pub(crate) fn new(kind: Kind, subject: impl Into<String>, detail: &str) -> Error {
        let clean = detail.chars().map(|c| if c.is_control() { ' ' } else { c }).take(DETAIL_CHARS_MAX).collect();
        Error { kind, subject: subject.into(), detail: clean }
    }

    /// An error of a request to the store, by its code or status.
    pub(crate) fn of_response(subject: impl Into<String>, status: u16, body: &str) -> Error {
        let code = element(body, "Code").unwrap_or_default();
        let kind = Kind::of_code(code).unwrap_or(match status {
            404 => Kind::NotFound,
            401 | 403 => Kind::Denied,
            412 => Kind::Changed,
            429 => Kind::SlowDown,
            500..=599 => Kind::Unreachable,
            301 | 307 | 308 => Kind::Settings,
            _ => Kind::Other,
        });
        let message = element(body, "Message").unwrap_or_default();
        Error::new(kind, subject, format!("status {status} {code} {message}").trim_end())
    }

    fn words(&self) -> String {
        let words = self.kind.words();
        if self.detail.is_empty() { words.to_owned() } else { format!("{words} ({})", self.detail) }
    }

    /// An error of the library.
    pub(crate) fn of(subject: impl Into<String>, error: &object_store::Error) -> Error {
        use object_store::Error as Of;
        let text = error.to_string();
        let kind = element(&text, "Code").and_then(Kind::of_code).unwrap_or_else(|| match error {
            Of::NotFound { .. } => Kind::NotFound,
            Of::PermissionDenied { .. } | Of::Unauthenticated { .. } => Kind::Denied,
            Of::Precondition { .. } | Of::NotModified { .. } => Kind::Changed,
            // No key that the library can't ask for is one of ours.
            Of::InvalidPath { .. } => Kind::NotFound,
            Of::UnknownConfigurationKey { .. } => Kind::Settings,
            error => of_transport(error, &text),
        });
        let detail = match (element(&text, "Code"), element(&text, "Message")) {
            (Some(code), message) => format!("{code} {}", message.unwrap_or_default()),
            // The whole of it repeats what the kind says.
            (None, _) if matches!(kind, Kind::NotFound | Kind::Changed) => String::new(),
            (None, _) => text.clone(),
        };
        Error::new(kind, subject, detail.trim_end())
    }
}

/// The kind of an error without an answer of S3's.
fn of_transport(error: &object_store::Error, text: &str) -> Kind {
    // Where an instance of EC2 asks for its role: the last place to look for credentials, and this machine is none.
    if text.contains(INSTANCE_METADATA) {
        return Kind::NoCredentials;
    }
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(http) = error.downcast_ref::<HttpError>() {
            return of_http(http);
        }
        source = error.source();
    }
    let statuses = [
        ("429 Too Many Requests", Kind::SlowDown),
        ("503 Service Unavailable", Kind::SlowDown),
        ("status code: 5", Kind::Unreachable),
        ("Received redirect without LOCATION", Kind::Settings),
        ("error decoding response body", Kind::Unreachable),
    ];
    statuses.into_iter().find(|(part, _)| text.contains(part)).map_or(Kind::Other, |(_, kind)| kind)
}

/// The kind of a request without an answer.
pub(crate) fn of_http(error: &HttpError) -> Kind {
    match error.kind() {
        HttpErrorKind::Decode => Kind::Other,
        _ => Kind::Unreachable,
    }
}

/// The text of the first such element. Good enough for the flat answers that S3 gives to failed requests.
pub(crate) fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    Some(rest.split_once("</")?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_is_no_instance_has_no_credentials() {
        let source = "Error performing PUT http://169.254.169.254/latest/api/token in 3s: connection refused".into();
        let error = object_store::Error::Generic { store: "S3", source };
        assert_eq!(Error::of("s3://b/", &error).kind, Kind::NoCredentials);
    }

    #[test]
    fn codes_come_before_statuses() {
        let body = "<Error><Code>SlowDown</Code><Message>Please reduce\nyour rate</Message></Error>";
        let error = Error::of_response("s3://b/", 503, body);
        assert_eq!(error.kind, Kind::SlowDown);
        assert!(error.to_string().contains("SlowDown Please reduce your rate"), "{error}");
        assert_eq!(Error::of_response("x", 403, "<Code>ExpiredToken</Code>").kind, Kind::Expired);
        assert_eq!(Error::of_response("x", 404, "<Code>NoSuchBucket</Code>").kind, Kind::NoBucket);
        assert_eq!(Error::of_response("x", 403, "<Code>InvalidObjectState</Code>").kind, Kind::Archived);
        for (status, kind) in
            [(404, Kind::NotFound), (403, Kind::Denied), (412, Kind::Changed), (502, Kind::Unreachable)]
        {
            assert_eq!(Error::of_response("x", status, "").kind, kind, "{status}");
        }
    }
}
