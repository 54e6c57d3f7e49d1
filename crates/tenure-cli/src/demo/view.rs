//! What a person sees of the demo: a live picture on a terminal, plain lines elsewhere.
//!
//! ```text
//!  tenure demo   east: frozen (SIGSTOP)                                       q ends it
//!  ┌ members ─────────────────────────────────────────────────────────────────────────┐
//!  │north  waits    ············█████████······xxxxxx·································│
//!  │east   frozen   ·····················██████··········█████████~~~~~~~              │
//! ```

use std::cell::RefCell;
use std::io::{IsTerminal, Stdout, stdout};
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, List, ListItem, Paragraph};
use tokio::sync::mpsc;

use super::lanes::{Lane, Lanes, Phase};
use super::node::MemberEvent;
use super::now_ns;
use crate::output::out;

/// The least time that a column of a bar stands for.
const COLUMN_NS: u64 = 250_000_000;
/// Before the bars: a name and what its member does.
const LABEL: usize = 17;
/// How long the keyboard is waited for before the picture's end is looked for.
const KEYS: Duration = Duration::from_millis(100);

/// What the keyboard and the terminal say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    /// Ctrl-C, which is no signal while keys come one by one.
    Interrupt,
    Resized,
}

#[derive(Debug)]
struct Scene {
    began_ns: u64,
    lanes: Lanes,
    doing: String,
    log: Vec<String>,
    outcomes: Vec<String>,
}

/// Dropped, also by a panic: the terminal is as it was.
pub(super) struct View {
    scene: RefCell<Scene>,
    screen: RefCell<Option<Terminal<CrosstermBackend<Stdout>>>>,
}

impl View {
    /// Also returns what the keyboard says; nothing ever, where there is no picture.
    pub(super) fn open(
        plain: bool,
        names: &[&'static str],
    ) -> anyhow::Result<(Self, mpsc::UnboundedReceiver<Key>)> {
        let (keys, pressed) = mpsc::unbounded_channel();
        let mut screen = None;
        if !plain && stdout().is_terminal() {
            execute!(stdout(), EnterAlternateScreen, Hide)?;
            screen = Some(Terminal::new(CrosstermBackend::new(stdout()))?);
            // Keys come one by one; Ctrl-C is one of them then.
            if enable_raw_mode().is_ok() {
                std::thread::spawn(move || read_keys(&keys));
            }
        }
        let scene = Scene {
            began_ns: now_ns(),
            lanes: Lanes::new(names),
            doing: String::new(),
            log: Vec::new(),
            outcomes: Vec::new(),
        };
        Ok((View { scene: RefCell::new(scene), screen: RefCell::new(screen) }, pressed))
    }

    /// What is done to a member or the database.
    pub(super) fn fault(&self, text: &str) {
        self.scene.borrow_mut().doing = text.to_owned();
        self.line(&format!(">> {text}"));
    }

    /// What a fault makes of a member.
    pub(super) fn hit(&self, node: usize, phase: Phase) {
        self.scene.borrow_mut().lanes.hit(node, now_ns(), phase);
    }

    pub(super) fn healed(&self, node: usize) {
        self.scene.borrow_mut().lanes.heal(node, now_ns());
        self.note("healed");
    }

    pub(super) fn note(&self, text: &str) {
        self.scene.borrow_mut().doing = text.to_owned();
        self.line(&format!("   {text}"));
    }

    pub(super) fn outcome(&self, text: &str) {
        self.scene.borrow_mut().outcomes.push(text.to_owned());
        self.line(&format!("== {text}"));
    }

    /// What a member says of itself.
    pub(super) fn heard(&self, node: usize, event: &MemberEvent) {
        let name = {
            let mut scene = self.scene.borrow_mut();
            scene.lanes.heard(node, event);
            scene.lanes.lanes[node].name
        };
        let shown = ["acquired", "released", "lost", "late", "well", "recovered"];
        if shown.contains(&event.event.as_str()) {
            let epoch = event.epoch.map(|epoch| format!(", epoch {epoch}")).unwrap_or_default();
            let reason = event.reason.as_deref().map(|why| format!(" ({why})")).unwrap_or_default();
            self.line(&format!("   {name}: {}{epoch}{reason}", event.event));
        }
    }

    fn line(&self, text: &str) {
        let began = self.scene.borrow().began_ns;
        let at = Duration::from_nanos(now_ns().saturating_sub(began)).as_secs_f64();
        let line = format!("{at:7.3} {text}");
        if self.screen.borrow().is_none() {
            out!("{line}");
        }
        self.scene.borrow_mut().log.push(line);
        self.draw();
    }

    /// The terminal has another size: what it made of the old picture is not known.
    pub(super) fn redraw(&self) {
        if let Some(screen) = &mut *self.screen.borrow_mut() {
            let _ = screen.clear();
        }
        self.draw();
    }

    pub(super) fn draw(&self) {
        let scene = self.scene.borrow();
        if let Some(screen) = &mut *self.screen.borrow_mut() {
            // A terminal that cannot be drawn on is no reason to stop the election.
            let _ = screen.draw(|frame| {
                let members = u16::try_from(scene.lanes.lanes.len()).unwrap_or(3) + 4;
                let [top, lanes, outcomes, log] = Layout::vertical([
                    Constraint::Length(1),
                    Constraint::Length(members),
                    Constraint::Max(8),
                    Constraint::Min(3),
                ])
                .areas(frame.area());
                let width = usize::from(top.width);
                let title = format!("tenure demo   {}", scene.doing);
                let title = format!(
                    "{:<room$} q ends it",
                    cut(&title, width.saturating_sub(10)),
                    room = width.saturating_sub(10)
                );
                frame.render_widget(Paragraph::new(Line::from(title)).style(bold()), top);
                let bars = usize::from(lanes.width).saturating_sub(LABEL + 2);
                let picture = picture(&scene.lanes.lanes, scene.began_ns, now_ns(), bars);
                let block = Block::bordered().title(" members ");
                frame.render_widget(Paragraph::new(picture).block(block), lanes);
                frame.render_widget(tail(" faults ", &scene.outcomes, outcomes), outcomes);
                frame.render_widget(tail(" events ", &scene.log, log), log);
            });
        }
    }

    /// Gives the terminal back.
    pub(super) fn close(&self) {
        if self.screen.borrow_mut().take().is_some() {
            let _ = disable_raw_mode();
            let _ = execute!(stdout(), LeaveAlternateScreen, Show);
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.close();
    }
}

/// Until the picture is gone.
fn read_keys(keys: &mpsc::UnboundedSender<Key>) {
    while !keys.is_closed() {
        if !event::poll(KEYS).unwrap_or(false) {
            continue;
        }
        let key = match event::read() {
            Ok(Event::Key(key)) => match key.code {
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                    Some(Key::Interrupt)
                }
                KeyCode::Char('q' | 'Q') | KeyCode::Esc => Some(Key::Quit),
                _ => None,
            },
            Ok(Event::Resize(..)) => Some(Key::Resized),
            Ok(_) => None,
            Err(_) => return,
        };
        if let Some(key) = key {
            let _ = keys.send(key);
        }
    }
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn style(phase: Phase) -> Style {
    match phase {
        Phase::Leads { .. } => bold().fg(Color::Green),
        Phase::Killed => Style::new().fg(Color::Red),
        Phase::Frozen | Phase::CutOff => Style::new().fg(Color::Yellow),
        Phase::Away | Phase::Waits => Style::new(),
    }
}

/// One line for each member, the whole time from left to right, and a line that tells the time.
fn picture(lanes: &[Lane], began: u64, now: u64, width: usize) -> Vec<Line<'static>> {
    let columns = u64::try_from(width).unwrap_or(1).max(1);
    let elapsed = now.saturating_sub(began);
    let step = COLUMN_NS.max(elapsed.div_ceil(columns));
    let shown = elapsed / step;
    let mut lines: Vec<Line<'static>> = lanes
        .iter()
        .map(|lane| {
            let phase = lane.now();
            let label = format!("{:<7}{:<10}", lane.name, phase.word());
            let mut spans = vec![Span::styled(label, style(phase))];
            let mut last = None;
            let mut column = 0;
            while column < shown {
                let phase = lane.at(began + column * step + step / 2);
                // A term's bar begins with its epoch.
                let text = match phase {
                    Phase::Leads { epoch } if last != Some(phase) => epoch.to_string(),
                    _ => phase.mark().to_string(),
                };
                column += u64::try_from(text.chars().count()).unwrap_or(1);
                spans.push(Span::styled(text, style(phase)));
                last = Some(phase);
            }
            Line::from(spans)
        })
        .collect();
    let seconds = elapsed / 1_000_000_000;
    let axis = format!(
        "{:LABEL$}0 s {:>room$}",
        "",
        format!("{seconds} s"),
        room = usize::try_from(shown).unwrap_or(0).saturating_sub(4)
    );
    lines.push(Line::from(axis));
    lines.push(Line::from(cut(
        "█ leads, from its epoch on   · waits   x killed   ~ frozen   / cut off",
        width + LABEL,
    )));
    lines
}

/// The last lines that fit, each cut with a mark.
fn tail<'a>(title: &'a str, lines: &'a [String], area: ratatui::layout::Rect) -> List<'a> {
    let fit = usize::from(area.height.saturating_sub(2));
    let width = usize::from(area.width.saturating_sub(2));
    let shown = &lines[lines.len().saturating_sub(fit)..];
    List::new(shown.iter().map(move |line| ListItem::new(cut(line, width))))
        .block(Block::bordered().title(title))
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}
