//! A profile of the `aws` tools: `~/.aws/config` and `~/.aws/credentials`.

use async_trait::async_trait;
use object_store::aws::AwsCredential;
use object_store::client::CredentialProvider;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;
use tokio::sync::Mutex;

/// Largest file of profiles, and largest output of a program for credentials, in bytes.
const BYTES_MAX: u64 = 1 << 20;
/// Time in which a program for credentials has to end.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(60);
/// Credentials are renewed this long before they expire; those of which that isn't known are looked up again after as long.
const RENEW_AHEAD: Duration = Duration::from_secs(300);

type Section = BTreeMap<String, String>;

/// The settings of one profile; empty if there are no files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Profile {
    name: String,
    values: Section,
    /// Of the section of services that the profile names.
    services: Section,
}

impl Profile {
    /// Reads the profile that `AWS_PROFILE` names, or the one named `default`. Fails if the named one isn't there.
    pub(crate) fn load() -> Result<Profile, String> {
        let named = ["AWS_PROFILE", "AWS_DEFAULT_PROFILE"].iter().find_map(|name| std::env::var(name).ok());
        let named = named.filter(|name| !name.is_empty());
        let config = file("AWS_CONFIG_FILE", "config").map(|path| sections(&path)).transpose()?.unwrap_or_default();
        let credentials = file("AWS_SHARED_CREDENTIALS_FILE", "credentials");
        let credentials = credentials.map(|path| sections(&path)).transpose()?.unwrap_or_default();
        Profile::pick(named, config, &credentials)
    }

    fn pick(
        named: Option<String>,
        mut config: BTreeMap<String, Section>,
        credentials: &BTreeMap<String, Section>,
    ) -> Result<Profile, String> {
        let name = named.clone().unwrap_or_else(|| "default".to_owned());
        let of_config = config.remove(&format!("profile {name}"));
        let of_config = of_config.or_else(|| if name == "default" { config.remove("default") } else { None });
        let of_credentials = credentials.get(&name);
        if named.is_some() && of_config.is_none() && of_credentials.is_none() {
            return Err(format!("there is no profile {name} in ~/.aws/config or ~/.aws/credentials"));
        }
        let mut values = of_config.unwrap_or_default();
        // Of keys that are in both files, those of the file for them count.
        values.extend(of_credentials.into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())));
        let services = values.get("services").and_then(|name| config.remove(&format!("services {name}")));
        Ok(Profile { name, values, services: services.unwrap_or_default() })
    }

    pub(crate) fn get(&self, key: &str) -> Option<String> {
        self.values.get(key).filter(|value| !value.is_empty()).cloned()
    }

    /// URL of the store.
    pub(crate) fn endpoint(&self) -> Option<String> {
        self.services
            .get("s3.endpoint_url")
            .cloned()
            .or_else(|| self.get("s3.endpoint_url"))
            .or_else(|| self.get("endpoint_url"))
    }

    /// `path`, `virtual` or `auto`.
    pub(crate) fn addressing_style(&self) -> Option<String> {
        self.get("s3.addressing_style")
    }
}

/// The path of a file of profiles, if it is there.
fn file(variable: &str, name: &str) -> Option<PathBuf> {
    let path = match std::env::var_os(variable) {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(std::env::var_os("HOME")?).join(".aws").join(name),
    };
    path.is_file().then_some(path)
}

/// The sections of a file. Values that are indented below a key have its name before theirs, as `s3.addressing_style`.
fn sections(path: &Path) -> Result<BTreeMap<String, Section>, String> {
    let failed = |why: String| format!("cannot read {}: {why}", path.display());
    let length = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?.len();
    if length > BYTES_MAX {
        return Err(failed(format!("it has over {BYTES_MAX} bytes")));
    }
    std::fs::read_to_string(path).map(|text| parse(&text)).map_err(|error| failed(error.to_string()))
}

fn parse(text: &str) -> BTreeMap<String, Section> {
    let mut sections: BTreeMap<String, Section> = BTreeMap::new();
    let (mut section, mut above) = (String::new(), String::new());
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = trimmed.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            section = name.split_whitespace().map(|word| word.trim_matches('"')).collect::<Vec<_>>().join(" ");
            above.clear();
            sections.entry(section.clone()).or_default();
            continue;
        }
        let Some((key, value)) = trimmed.split_once('=') else { continue };
        let value = value.split(" #").next().unwrap_or_default().trim().to_owned();
        let key = key.trim().to_lowercase();
        let is_nested = line.starts_with([' ', '\t']) && !above.is_empty();
        let full = if is_nested { format!("{above}.{key}") } else { key.clone() };
        if !is_nested {
            above = if value.is_empty() { key } else { String::new() };
        }
        sections.entry(section.clone()).or_default().insert(full, value);
    }
    sections
}

/// Credentials of a profile, looked up again when they may have changed.
#[derive(Debug)]
pub(crate) struct ProfileCredentials {
    known: Mutex<Option<Known>>,
}

#[derive(Debug)]
struct Known {
    credential: Arc<AwsCredential>,
    good_until: SystemTime,
}

impl ProfileCredentials {
    /// Those of a profile; `None` if it has none. Fails if only the `aws` program can get them.
    pub(crate) fn of(profile: &Profile) -> Result<Option<ProfileCredentials>, String> {
        let has = |key| profile.get(key).is_some();
        if !has("aws_access_key_id") && !has("credential_process") {
            let name = &profile.name;
            let by_aws = |what| {
                Err(format!(
                    "the profile {name} has {what}: add a profile with \
                     credential_process = aws configure export-credentials --profile {name} --format process"
                ))
            };
            return match () {
                () if has("role_arn") => by_aws("a role to assume"),
                () if has("sso_session") || has("sso_start_url") => by_aws("a single sign-on"),
                () => Ok(None),
            };
        }
        Ok(Some(ProfileCredentials { known: Mutex::default() }))
    }
}

#[async_trait]
impl CredentialProvider for ProfileCredentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let mut known = self.known.lock().await;
        let now = SystemTime::now();
        if let Some(known) = known.as_ref().filter(|known| now < known.good_until) {
            return Ok(Arc::clone(&known.credential));
        }
        // Someone may have renewed them in the file.
        let profile = Profile::load().map_err(failed)?;
        let (credential, expiration) = match static_credential(&profile) {
            Some(credential) => (credential, None),
            None => match profile.get("credential_process") {
                Some(program) => ask(&program).await.map_err(failed)?,
                None => return Err(failed(format!("the profile {} has no credentials any more", profile.name))),
            },
        };
        let good_until = expiration
            .map_or(now + RENEW_AHEAD, |at| at - RENEW_AHEAD.min(at.duration_since(now).unwrap_or_default() / 2));
        let credential = Arc::new(credential);
        *known = Some(Known { credential: Arc::clone(&credential), good_until });
        Ok(credential)
    }
}

fn failed(why: String) -> object_store::Error {
    object_store::Error::Generic { store: "credentials", source: why.into() }
}

fn static_credential(profile: &Profile) -> Option<AwsCredential> {
    let (key_id, secret_key) = (profile.get("aws_access_key_id")?, profile.get("aws_secret_access_key")?);
    Some(AwsCredential { key_id, secret_key, token: profile.get("aws_session_token") })
}

/// The output of a program for credentials.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Output {
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    expiration: Option<String>,
}

/// Runs a program for credentials. Returns when they expire, too.
async fn ask(program: &str) -> Result<(AwsCredential, Option<SystemTime>), String> {
    let failed = |why: String| format!("credential_process failed: {why}");
    let mut command = Command::new("sh");
    command.args(["-c", program]).stdin(Stdio::null()).kill_on_drop(true);
    let ended = tokio::time::timeout(PROGRAM_TIMEOUT, run(command)).await;
    let ended = ended.map_err(|_| failed(format!("it didn't end within {} s", PROGRAM_TIMEOUT.as_secs())))?;
    let (status, output, errors) = ended.map_err(|error| failed(error.to_string()))?;
    if !status.success() {
        return Err(failed(format!("{status}: {}", String::from_utf8_lossy(&errors).trim())));
    }
    parse_output(&output).map_err(failed)
}

/// Runs a program to its end. Returns its output and its errors.
async fn run(mut command: Command) -> io::Result<(ExitStatus, Vec<u8>, Vec<u8>)> {
    let mut program = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let pipes = (program.stdout.take(), program.stderr.take());
    let (output, errors) = tokio::try_join!(read(pipes.0), read(pipes.1))?;
    Ok((program.wait().await?, output, errors))
}

async fn read(pipe: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(BYTES_MAX + 1).read_to_end(&mut bytes).await?;
    }
    match bytes.len() as u64 {
        0..=BYTES_MAX => Ok(bytes),
        _ => Err(io::Error::other(format!("it writes more than {BYTES_MAX} bytes"))),
    }
}

fn parse_output(json: &[u8]) -> Result<(AwsCredential, Option<SystemTime>), String> {
    let output: Output = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let Output { access_key_id: key_id, secret_access_key: secret_key, session_token: token, expiration } = output;
    let at =
        |text: String| humantime::parse_rfc3339(&normal(&text)).map_err(|error| format!("Expiration {text}: {error}"));
    Ok((AwsCredential { key_id, secret_key, token }, expiration.map(at).transpose()?))
}

/// A time in UTC as `humantime` reads it.
fn normal(text: &str) -> String {
    text.strip_suffix("+00:00").map_or_else(|| text.to_owned(), |time| format!("{time}Z"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const CONFIG: &str = "[default]\nregion = eu-west-1\n\n[profile two]\nregion=us-west-2 # of the team\ns3 =\n  addressing_style = path\nservices = own\n\
        [services own]\ns3 =\n    endpoint_url = http://127.0.0.1:9000\n[profile sso]\nsso_session = x\n";

    fn pick(name: Option<&str>, credentials: &str) -> Result<Profile, String> {
        Profile::pick(name.map(str::to_owned), parse(CONFIG), &parse(credentials))
    }

    #[test]
    fn a_profile_has_what_both_files_say() {
        let profile = pick(Some("two"), "[two]\naws_access_key_id = A\naws_secret_access_key = S=/+\n").unwrap();
        assert_eq!(profile.get("region").as_deref(), Some("us-west-2"));
        assert_eq!(profile.addressing_style().as_deref(), Some("path"));
        assert_eq!(profile.endpoint().as_deref(), Some("http://127.0.0.1:9000"));
        let credential = static_credential(&profile).unwrap();
        assert_eq!((credential.key_id.as_str(), credential.secret_key.as_str(), credential.token), ("A", "S=/+", None));
        assert_eq!(pick(None, "").unwrap().get("region").as_deref(), Some("eu-west-1"));
        assert!(pick(Some("three"), "").unwrap_err().contains("no profile three"));
        assert!(Profile::pick(None, BTreeMap::new(), &BTreeMap::new()).is_ok());
        let why = ProfileCredentials::of(&pick(Some("sso"), "").unwrap()).unwrap_err();
        assert!(why.contains("export-credentials"), "{why}");
        assert!(ProfileCredentials::of(&pick(None, "").unwrap()).unwrap().is_none());
    }

    #[test]
    fn a_program_may_write_only_so_much() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let ask = |program: &str| runtime.block_on(ask(program));
        let (credential, _) = ask(r#"echo '{"AccessKeyId":"A","SecretAccessKey":"S"}'; echo words >&2"#).unwrap();
        assert_eq!(credential.key_id, "A");
        assert!(ask("echo no >&2; exit 3").unwrap_err().ends_with("3: no"));
        for program in ["yes", "yes >&2"] {
            assert!(ask(program).unwrap_err().contains("more than 1048576 bytes"));
        }
    }

    #[test]
    fn the_output_of_a_program_may_expire() {
        let json = br#"{"Version":1,"AccessKeyId":"A","SecretAccessKey":"S","SessionToken":"T","Expiration":"2030-01-02T03:04:05+00:00"}"#;
        let (credential, expiration) = parse_output(json).unwrap();
        assert_eq!(credential.token.as_deref(), Some("T"));
        assert_eq!(humantime::format_rfc3339(expiration.unwrap()).to_string(), "2030-01-02T03:04:05Z");
        assert!(parse_output(br#"{"Version":1}"#).is_err());
    }
}
