//! Questions of operators that a standby passes on to the leader.

use std::pin::Pin;
use std::sync::Arc;

/// Makes the leader's answer to a question.
pub type Handler = Arc<dyn Fn(Vec<u8>) -> Pin<Box<dyn Future<Output = Vec<u8>> + Send>> + Send + Sync>;

/// A build without cells has none.
#[cfg(not(feature = "nats"))]
#[derive(Debug, Clone)]
pub enum Questions {}

#[cfg(not(feature = "nats"))]
impl Questions {
    /// Whether this broker leads.
    pub fn leads(&self) -> bool {
        match *self {}
    }

    /// Asks the leader.
    pub fn ask(&self, _: Vec<u8>) -> Result<Vec<u8>, String> {
        match *self {}
    }

    /// Answers so while this broker leads.
    pub fn answer_with(&self, _: Handler) {
        match *self {}
    }
}
