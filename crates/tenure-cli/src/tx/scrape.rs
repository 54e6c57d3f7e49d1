//! The metrics of `tx node`, for Prometheus.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context as _;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{interval, sleep, timeout};

use tenure_tx::metrics;

/// An address, or a port alone: then this machine's own. What is served here has no login.
pub(super) fn address_of(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    text.parse().map_err(|_| "neither a port nor an address with one, as 127.0.0.1:9464".to_owned())
}

/// Records from now on and serves what was recorded; returns where.
pub(super) async fn start(address: SocketAddr) -> anyhow::Result<SocketAddr> {
    let context = || format!("metrics on {address}");
    let listener = TcpListener::bind(address).await.with_context(context)?;
    let bound = listener.local_addr().with_context(context)?;
    let recorder = PrometheusBuilder::new().install_recorder().with_context(context)?;
    metrics::begin_at_zero();
    tokio::spawn(tidy(recorder.clone()));
    tokio::spawn(serve(listener, recorder));
    Ok(bound)
}

/// The recorder keeps every sample of a histogram until it is told, and nobody may ever scrape.
async fn tidy(recorder: PrometheusHandle) {
    let mut tick = interval(Duration::from_secs(5));
    loop {
        tick.tick().await;
        recorder.run_upkeep();
    }
}

async fn serve(listener: TcpListener, recorder: PrometheusHandle) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let answer = answer(stream, recorder.clone());
                // A scraper that hangs or hangs up loses its scrape and nothing else.
                tokio::spawn(timeout(Duration::from_secs(5), answer));
            }
            // Out of file descriptors, most likely: others must close first.
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

/// The least of HTTP that Prometheus needs: whatever is asked, the metrics are the answer.
async fn answer(mut stream: TcpStream, recorder: PrometheusHandle) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < 16 << 10 {
        if stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let body = recorder.render();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_this_machines_own() {
        let parsed = |text| address_of(text).map(|address| address.to_string());
        assert_eq!(parsed("9464").as_deref(), Ok("127.0.0.1:9464"));
        assert_eq!(parsed("0.0.0.0:9464").as_deref(), Ok("0.0.0.0:9464"));
        for wrong in ["", "localhost", "70000", "127.0.0.1"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
