package changefeed

// Password reads a password file as sources and sinks get it.
func (o Opener) Password(name string) (string, error) { return o.password(name) }
