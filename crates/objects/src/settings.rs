//! Settings of a bucket, as options, the environment and the profile have them.

use crate::profile::{Profile, ProfileCredentials};
use crate::{Error, Kind, ObjectUrl};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::{BackoffConfig, ClientOptions, RetryConfig};
use std::sync::Arc;
use std::time::Duration;

/// Time in which a connection has to be there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time in which a store has to send something. Of a request with a body it would count from its beginning: those have none.
const READ_TIMEOUT: Duration = Duration::from_secs(20);
/// Repetitions of a request that failed for a passing reason, and the time after which it isn't repeated: sending content may take longer.
const RETRIES_MAX: usize = 5;
const RETRY_TIME: Duration = Duration::from_secs(30);
pub(crate) const PUT_RETRY_TIME: Duration = Duration::from_secs(240);
/// First wait before a repetition, which doubles, and the longest.
pub(crate) const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// Idle connections that are kept.
const IDLE_CONNECTIONS_MAX: usize = 32;

/// Settings of a store that come before those of the environment and the profile.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// URL of the store, if it isn't AWS.
    pub endpoint: Option<String>,
    /// Requests without a signature.
    pub anonymous: bool,
}

/// All that a request needs.
pub(crate) struct Settings {
    pub(crate) builder: AmazonS3Builder,
    pub(crate) client: ClientOptions,
    /// URL of the bucket, without a slash at its end.
    pub(crate) bucket_endpoint: String,
    pub(crate) region: String,
    pub(crate) anonymous: bool,
    pub(crate) request_payer: bool,
}

impl Settings {
    /// Looks for them in options, environment and profile, in this order.
    pub(crate) fn find(url: &ObjectUrl, options: &Options) -> Result<Settings, Error> {
        let wrong = |why: String| Error::new(Kind::Settings, url.to_string(), &why);
        let profile = Profile::load().map_err(wrong)?;
        let from_env = AmazonS3Builder::from_env();
        let said = |key: AmazonS3ConfigKey| from_env.get_config_value(&key).filter(|value| !value.is_empty());
        let is_true = |key| said(key).is_some_and(|value| value.eq_ignore_ascii_case("true") || value == "1");
        let region =
            said(AmazonS3ConfigKey::Region).or_else(|| profile.get("region")).unwrap_or("us-east-1".to_owned());
        let endpoint = options
            .endpoint
            .clone()
            .or_else(|| said(AmazonS3ConfigKey::S3Endpoint))
            .or_else(|| said(AmazonS3ConfigKey::Endpoint))
            .or_else(|| profile.endpoint());
        // Stores of one's own seldom have names for their buckets in the DNS.
        let is_virtual = match profile.addressing_style().as_deref() {
            _ if is_true(AmazonS3ConfigKey::VirtualHostedStyleRequest) => true,
            Some("virtual") => true,
            Some("path") => false,
            // A certificate for names below the region's has one level.
            _ => endpoint.is_none() && !url.bucket.contains('.'),
        };
        let endpoint = endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let bucket_endpoint = bucket_endpoint(&endpoint, &url.bucket, is_virtual).map_err(wrong)?;
        let anonymous = options.anonymous || is_true(AmazonS3ConfigKey::SkipSignature);
        let payer = std::env::var("AWS_REQUEST_PAYER").unwrap_or_default();
        let request_payer = payer.eq_ignore_ascii_case("requester") || payer.eq_ignore_ascii_case("true");
        let client = ClientOptions::new()
            .with_timeout_disabled()
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_read_timeout(READ_TIMEOUT)
            .with_pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .with_allow_http(bucket_endpoint.starts_with("http://"));
        let mut builder = from_env
            .clone()
            .with_bucket_name(&url.bucket)
            .with_region(&region)
            .with_config(AmazonS3ConfigKey::S3Endpoint, &bucket_endpoint)
            // The endpoint has the bucket already, in its name or its path.
            .with_virtual_hosted_style_request(true)
            .with_skip_signature(anonymous)
            // Anything that could spoil the body on its way is covered by TLS, or wouldn't be stopped by this.
            .with_unsigned_payload(bucket_endpoint.starts_with("https://"))
            .with_client_options(client.clone())
            .with_retry(retry(RETRY_TIME));
        let has_static = std::env::var_os("AWS_ACCESS_KEY_ID").is_some_and(|key| !key.is_empty());
        let has_token = std::env::var_os("AWS_WEB_IDENTITY_TOKEN_FILE").is_some();
        if !anonymous && !has_static && !has_token {
            if let Some(credentials) = ProfileCredentials::of(&profile).map_err(wrong)? {
                builder = builder.with_credentials(Arc::new(credentials));
            } else if std::env::var("AWS_EC2_METADATA_DISABLED").is_ok_and(|value| value.eq_ignore_ascii_case("true"))
                && said(AmazonS3ConfigKey::ContainerCredentialsRelativeUri).is_none()
                && said(AmazonS3ConfigKey::ContainerCredentialsFullUri).is_none()
            {
                return Err(Error::new(Kind::NoCredentials, url.to_string(), ""));
            }
        }
        Ok(Settings { builder, client, bucket_endpoint, region, anonymous, request_payer })
    }
}

pub(crate) fn retry(retry_timeout: Duration) -> RetryConfig {
    let backoff = BackoffConfig { init_backoff: BACKOFF_FIRST, max_backoff: BACKOFF_MAX, base: 2.0 };
    RetryConfig { backoff, max_retries: RETRIES_MAX, retry_timeout }
}

/// URL of a bucket, without a slash at its end.
fn bucket_endpoint(endpoint: &str, bucket: &str, is_virtual: bool) -> Result<String, String> {
    let wrong = || format!("the endpoint {endpoint} is no http:// or https:// URL");
    let (scheme, rest) = endpoint.split_once("://").ok_or_else(wrong)?;
    let rest = rest.trim_end_matches('/');
    if !matches!(scheme, "http" | "https") || rest.is_empty() || rest.contains(['?', '#', '@', ' ']) {
        return Err(wrong());
    }
    let url = if is_virtual { format!("{scheme}://{bucket}.{rest}") } else { format!("{scheme}://{rest}/{bucket}") };
    match url.parse::<http::Uri>() {
        Ok(_) => Ok(url),
        Err(_) => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_bucket_is_in_the_path_or_in_the_name() {
        let url = |endpoint, is_virtual| bucket_endpoint(endpoint, "data", is_virtual);
        assert_eq!(url("http://127.0.0.1:9000/", false).unwrap(), "http://127.0.0.1:9000/data");
        assert_eq!(url("https://s3.eu-west-1.amazonaws.com", true).unwrap(), "https://data.s3.eu-west-1.amazonaws.com");
        for wrong in ["127.0.0.1:9000", "ftp://host", "http://", "http://a b", "http://user@host", "http://host/?x"] {
            assert!(url(wrong, false).is_err(), "{wrong}");
        }
    }
}
