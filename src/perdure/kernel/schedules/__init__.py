"""Schedules: cron expressions, intervals, and the ticks that are due."""
