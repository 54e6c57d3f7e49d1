//! HTTP to a node, with a bound on what is read of an answer: an endpoint that never stops talking
//! must not take the memory of the process.

use std::task::{Context, Poll};

use alloy_json_rpc::{RequestPacket, ResponsePacket};
use alloy_transport::{TransportErrorKind, TransportFut};
use alloy_transport_http::reqwest::Client;
use tower_service::Service;
use url::Url;

use super::TransportError;

/// The longest answer that is read. A hundred receipts with their logs are some hundred KiB.
const LONGEST: usize = 16 << 20;

/// Why a longer one is not read on.
const TOO_LONG: &str = "an answer is longer than 16 MiB";

#[derive(Clone)]
pub(super) struct Http {
    client: Client,
    url: Url,
}

impl Http {
    pub(super) fn new(url: Url) -> Self {
        Http { client: Client::new(), url }
    }

    async fn exchange(self, request: RequestPacket) -> Result<ResponsePacket, TransportError> {
        let lost = TransportErrorKind::custom;
        let post = self.client.post(self.url).json(&request).headers(request.headers());
        let mut response = post.send().await.map_err(lost)?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(lost)? {
            if body.len() + chunk.len() > LONGEST {
                return Err(TransportErrorKind::custom_str(TOO_LONG));
            }
            body.extend_from_slice(&chunk);
        }
        if !status.is_success() {
            let text = String::from_utf8_lossy(&body).into_owned();
            return Err(TransportErrorKind::http_error(status.as_u16(), text));
        }
        serde_json::from_slice(&body)
            .map_err(|error| TransportError::deser_err(error, String::from_utf8_lossy(&body)))
    }
}

impl Service<RequestPacket> for Http {
    type Response = ResponsePacket;
    type Error = TransportError;
    type Future = TransportFut<'static>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: RequestPacket) -> Self::Future {
        Box::pin(self.clone().exchange(request))
    }
}
