// Package failpoint lets tests end or freeze a process at a named point. In a program built without the tag `failpoints`
// it does nothing.
package failpoint
