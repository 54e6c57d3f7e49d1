//! A recording of what a program asked a Substrate node, and its replay.
//!
//! Pure. A request is known by its method and parameters. The same request may have had many answers:
//! they come in their order. Orders and submissions change the node, reads do not: what the node told by
//! itself is told again once every order and submission before it was given again.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// One thing that passed between a program and its node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A request with its answer.
    Asked {
        /// The method.
        method: String,
        /// Its parameters, or their digest where they are long.
        params: Value,
        /// `{"result": …}` or `{"error": …}`; null as long as there is none.
        answer: Value,
    },
    /// A word about a subscription.
    Told {
        /// Its name.
        subscription: Value,
        /// The word.
        result: Value,
    },
}

/// The order to end the node and start it again.
pub const RESTART: &str = "restart";

/// The submission that is watched.
pub const SUBMIT: &str = "author_submitAndWatchExtrinsic";

/// Parameters above this length are kept as their digest.
const LONG: usize = 4096;

fn is_act(method: &str) -> bool {
    method == SUBMIT
        || method == RESTART
        || method == "author_removeExtrinsic"
        || method.starts_with("engine_")
        || method.starts_with("test_")
}

/// Whether the answer is the same as often as it is asked for: the hash of the first block.
fn is_constant(method: &str, params: &Value) -> bool {
    method == "chain_getBlockHash" && *params == json!([0])
}

fn shortened(params: &Value) -> Value {
    let text = params.to_string();
    if text.len() <= LONG {
        return params.clone();
    }
    let digest: String = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
    json!({"sha256": digest})
}

/// A recording in the making.
#[derive(Debug, Default)]
pub struct Recorder {
    events: Vec<Event>,
}

impl Recorder {
    /// Notes a request at its time; the answer goes to the place that is given back.
    pub fn asked(&mut self, method: &str, params: &Value) -> usize {
        let (method, params) = (method.to_owned(), shortened(params));
        self.events.push(Event::Asked { method, params, answer: Value::Null });
        self.events.len() - 1
    }

    /// Notes the answer of the request at that place.
    pub fn answered(&mut self, place: usize, given: Value) {
        if let Some(Event::Asked { answer, .. }) = self.events.get_mut(place) {
            *answer = given;
        }
    }

    /// Notes what the node said by itself.
    pub fn told(&mut self, subscription: Value, result: Value) {
        self.events.push(Event::Told { subscription, result });
    }

    /// What was noted; requests that a broken line left without an answer are left out.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        let answered = |event: &&Event| match event {
            Event::Asked { answer, .. } => !answer.is_null(),
            Event::Told { .. } => true,
        };
        self.events.iter().filter(answered).cloned().collect()
    }
}

/// A recording that is played.
#[derive(Debug)]
pub struct Player {
    events: Vec<Event>,
    used: Vec<bool>,
    /// Behind the last order or submission that was given again.
    act: usize,
    /// Behind the last word that was told again.
    told: usize,
}

impl Player {
    /// From its beginning.
    #[must_use]
    pub fn new(events: Vec<Event>) -> Self {
        Player { used: vec![false; events.len()], events, act: 0, told: 0 }
    }

    /// The answer of a request; `None` if it is not in the recording, or not so often.
    pub fn answer(&mut self, method: &str, params: &Value) -> Option<Value> {
        let params = shortened(params);
        let is_same = |(place, event): (usize, &Event)| match event {
            Event::Asked { method: recorded, params: with, answer } => {
                let is_left = !self.used[place] || is_constant(method, &params);
                let same = recorded == method && *with == params && is_left;
                same.then(|| (place, answer.clone()))
            }
            Event::Told { .. } => None,
        };
        let mut all = self.events.iter().enumerate().filter_map(is_same);
        let first = all.next()?;
        // Of reads, one from the time since the last act, if there is one.
        let later = std::iter::once(first.clone()).chain(all).find(|(place, _)| *place >= self.act);
        let (place, answer) = if is_act(method) { first } else { later.unwrap_or(first) };
        self.used[place] = true;
        if is_act(method) {
            self.act = self.act.max(place + 1);
        }
        Some(answer)
    }

    /// What the node says by itself now: subscription and word.
    pub fn due(&mut self) -> Vec<(Value, Value)> {
        let mut due = Vec::new();
        while let Some(event) = self.events.get(self.told) {
            match event {
                Event::Asked { method, .. } if is_act(method) && !self.used[self.told] => break,
                Event::Asked { .. } => {}
                Event::Told { subscription, result } => {
                    due.push((subscription.clone(), result.clone()));
                }
            }
            self.told += 1;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_in_their_order_and_words_after_the_acts_before_them() {
        let mut recorder = Recorder::default();
        for answer in ["zero", "one"] {
            let place = recorder.asked("chain_getBlockHash", &json!([]));
            recorder.answered(place, json!({"result": answer}));
            let place = recorder.asked("engine_createBlock", &json!([answer]));
            recorder.told(json!("s"), json!({"inBlock": answer}));
            recorder.answered(place, json!({"result": true}));
        }
        let place = recorder.asked("chain_getBlockHash", &json!([0]));
        recorder.answered(place, json!({"result": "first"}));
        let _lost = recorder.asked("chain_getBlockHash", &json!(["lost"]));
        let mut player = Player::new(recorder.events());
        assert!(player.due().is_empty(), "no block was ordered yet");
        assert_eq!(
            player.answer("engine_createBlock", &json!(["zero"])),
            Some(json!({"result": true}))
        );
        assert_eq!(player.due(), [(json!("s"), json!({"inBlock": "zero"}))]);
        // One that was read before the block is out of date now.
        assert_eq!(player.answer("chain_getBlockHash", &json!([])), Some(json!({"result": "one"})));
        assert_eq!(player.answer("chain_getBlockHash", &json!(["lost"])), None);
        assert_eq!(player.answer("engine_createBlock", &json!(["zero"])), None, "only once");
        for _ in 0..2 {
            let first = player.answer("chain_getBlockHash", &json!([0]));
            assert_eq!(first, Some(json!({"result": "first"})), "it never changes");
        }
    }

    #[test]
    fn long_parameters_are_known_by_their_digest() {
        let (long, other) = (json!(["x".repeat(LONG)]), json!(["y".repeat(LONG)]));
        let mut recorder = Recorder::default();
        let place = recorder.asked(SUBMIT, &long);
        recorder.answered(place, json!({"result": 1}));
        let events = recorder.events();
        assert!(serde_json::to_string(&events).expect("text").len() < 300);
        let mut player = Player::new(events);
        assert_eq!(player.answer(SUBMIT, &other), None);
        assert!(player.answer(SUBMIT, &long).is_some());
    }
}
