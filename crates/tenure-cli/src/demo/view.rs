//! What a person sees of the demo: a live picture on a terminal, plain lines elsewhere.

use std::cell::RefCell;
use std::io::{IsTerminal, Stdout, stdout};
use std::time::Instant;

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, List, ListItem, Paragraph, Row, Table};

use super::node::Said;
use crate::output::out;

/// One member as it presents itself.
#[derive(Debug, Clone)]
struct Face {
    name: &'static str,
    state: String,
    epoch: Option<i64>,
    leads: bool,
}

#[derive(Debug)]
struct Scene {
    began: Instant,
    faces: Vec<Face>,
    doing: String,
    log: Vec<String>,
    outcomes: Vec<String>,
}

/// Dropped, also by a panic: the terminal is as it was.
pub(super) struct View {
    scene: RefCell<Scene>,
    /// Not in raw mode: Ctrl-C stays a signal.
    screen: RefCell<Option<Terminal<CrosstermBackend<Stdout>>>>,
}

impl View {
    pub(super) fn open(plain: bool, names: &[&'static str]) -> anyhow::Result<Self> {
        let mut screen = None;
        if !plain && stdout().is_terminal() {
            execute!(stdout(), EnterAlternateScreen, Hide)?;
            screen = Some(Terminal::new(CrosstermBackend::new(stdout()))?);
        }
        let face = |name: &&'static str| Face {
            name,
            state: "starting".to_owned(),
            epoch: None,
            leads: false,
        };
        let scene = Scene {
            began: Instant::now(),
            faces: names.iter().map(face).collect(),
            doing: String::new(),
            log: Vec::new(),
            outcomes: Vec::new(),
        };
        Ok(View { scene: RefCell::new(scene), screen: RefCell::new(screen) })
    }

    /// What is done to a member or the database.
    pub(super) fn fault(&self, text: &str) {
        self.scene.borrow_mut().doing = text.to_owned();
        self.line(&format!(">> {text}"));
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
    pub(super) fn said(&self, node: usize, said: &Said) {
        let name = {
            let mut scene = self.scene.borrow_mut();
            let face = &mut scene.faces[node];
            if let Some(to) = &said.to {
                face.state.clone_from(to);
            }
            face.epoch = said.epoch.or(face.epoch);
            match said.event.as_str() {
                "acquired" | "well" | "recovered" => face.leads = true,
                "released" | "lost" | "late" | "stopped" => face.leads = false,
                _ => {}
            }
            face.name
        };
        let told = ["acquired", "released", "lost", "late", "well", "recovered"];
        if told.contains(&said.event.as_str()) {
            let epoch = said.epoch.map(|epoch| format!(", epoch {epoch}")).unwrap_or_default();
            let reason = said.reason.as_deref().map(|why| format!(" ({why})")).unwrap_or_default();
            self.line(&format!("   {name}: {}{epoch}{reason}", said.event));
        }
    }

    fn line(&self, text: &str) {
        let at = self.scene.borrow().began.elapsed().as_secs_f64();
        let line = format!("{at:7.3} {text}");
        if self.screen.borrow().is_none() {
            out!("{line}");
        }
        self.scene.borrow_mut().log.push(line);
        self.draw();
    }

    pub(super) fn draw(&self) {
        let scene = self.scene.borrow();
        if let Some(screen) = &mut *self.screen.borrow_mut() {
            // A terminal that cannot be drawn on is no reason to stop the election.
            let _ = screen.draw(|frame| {
                let [top, members, outcomes, log] = Layout::vertical([
                    Constraint::Length(1),
                    Constraint::Length(6),
                    Constraint::Length(9),
                    Constraint::Min(3),
                ])
                .areas(frame.area());
                let title = format!("tenure demo   {}", scene.doing);
                frame.render_widget(Paragraph::new(Line::from(title)).style(bold()), top);
                frame.render_widget(members_table(&scene.faces), members);
                frame.render_widget(tail("faults", &scene.outcomes, outcomes.height), outcomes);
                frame.render_widget(tail("events", &scene.log, log.height), log);
            });
        }
    }

    /// Gives the terminal back.
    pub(super) fn close(&self) {
        if self.screen.borrow_mut().take().is_some() {
            let _ = execute!(stdout(), LeaveAlternateScreen, Show);
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.close();
    }
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn members_table(faces: &[Face]) -> Table<'_> {
    let rows = faces.iter().map(|face| {
        let epoch = face.epoch.map(|epoch| epoch.to_string()).unwrap_or_default();
        let lead = if face.leads { "LEADS" } else { "" };
        let style = if face.leads { bold().fg(Color::Green) } else { Style::new() };
        Row::new([face.name.to_owned(), face.state.clone(), lead.to_owned(), epoch]).style(style)
    });
    let widths =
        [Constraint::Length(10), Constraint::Length(14), Constraint::Length(8), Constraint::Min(6)];
    Table::new(rows, widths)
        .header(Row::new(["member", "state", "", "epoch"]).style(bold()))
        .block(Block::bordered().title("members"))
}

/// The last lines that fit.
fn tail<'a>(title: &'a str, lines: &'a [String], height: u16) -> List<'a> {
    let fit = usize::from(height.saturating_sub(2));
    let shown = &lines[lines.len().saturating_sub(fit)..];
    List::new(shown.iter().map(|line| ListItem::new(line.as_str())))
        .block(Block::bordered().title(title))
}
