"""Pages of data, runs and jobs: one file (`tokenloom report`), or the browser (`tokenloom explore`)."""
