// follow ENDPOINT PATH DIRECTORY [SECRET-KEY-FILE SERVER-KEY-FILE] keeps a copy of PATH ("" is all) of `tow serve --watch`: first
// what is there, then each change. Links are left out.
package main

import (
	"errors"
	"fmt"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"towpath.example/towpath"
)

// Bytes that the server may have in flight.
const credit = 1_000_000

// copied is what this run has put into its directory.
type copied struct {
	directory, cursor string
	have              map[string]bool
	stale             map[string]bool // what hasn't come again since the full state began
}

func (c *copied) follow(link *towpath.Link, path string) error {
	if err := errors.Join(link.Send("follow", path, c.cursor), link.Send("credit", strconv.Itoa(credit))); err != nil {
		return err
	}
	for {
		message, err := link.Receive(-1)
		if err != nil {
			return err
		}
		if len(message) == 2 { // the word "error", and why
			return fmt.Errorf("%s: %s", path, message[1])
		}
		if len(message) != 6 {
			return fmt.Errorf("a message of %d frames: is it `tow serve`?", len(message))
		}
		kind, name := string(message[0]), string(message[1])
		size, err := strconv.ParseInt(string(message[3]), 10, 64)
		offset, err2 := strconv.ParseInt(string(message[4]), 10, 64)
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		done, err := c.change(kind, name, size, offset, message[5])
		if err != nil {
			return err
		}
		if done {
			c.cursor = string(message[2])
		}
		if err := link.Send("credit", strconv.Itoa(max(len(message[5]), 256))); err != nil {
			return err
		}
	}
}

// change carries a message out, and says whether its change is complete.
func (c *copied) change(kind, name string, size, offset int64, body []byte) (bool, error) {
	switch kind {
	case "full":
		c.stale = maps.Clone(c.have)
		return false, nil
	case "live":
		// What is in a directory goes before it.
		for _, name := range slices.Backward(slices.Sorted(maps.Keys(c.stale))) {
			c.remove(name)
		}
		c.stale = nil
		fmt.Println("up to date")
		return true, nil
	}
	// Never trust that it stays inside.
	if !filepath.IsLocal(name) {
		return false, fmt.Errorf("the server sent the path %q", name)
	}
	place := filepath.Join(c.directory, name)
	switch kind {
	case "dir":
		c.has(name)
		return true, os.MkdirAll(place, 0o777)
	case "gone":
		c.remove(name)
		fmt.Println("gone", name)
		return true, nil
	case "file":
		return c.piece(name, place, size, offset, body)
	case "void": // the file changed meanwhile, and comes again
		fmt.Println("void", name, string(body))
	}
	return true, nil
}

func (c *copied) piece(name, place string, size, offset int64, body []byte) (bool, error) {
	flags := os.O_WRONLY | os.O_CREATE
	if offset == 0 {
		flags |= os.O_TRUNC
		if err := os.MkdirAll(filepath.Dir(place), 0o777); err != nil {
			return false, err
		}
	}
	part := place + ".part"
	file, err := os.OpenFile(part, flags, 0o666)
	if err != nil {
		return false, err
	}
	_, err = file.WriteAt(body, offset)
	if err := errors.Join(err, file.Close()); err != nil {
		return false, err
	}
	if offset+int64(len(body)) < size {
		return false, nil
	}
	c.has(name)
	fmt.Println("file", name)
	return true, os.Rename(part, place)
}

func (c *copied) has(name string) {
	c.have[name] = true
	delete(c.stale, name)
}

// remove takes away only what this run has put there, and no directory that has something else.
func (c *copied) remove(name string) {
	if c.have[name] {
		os.Remove(filepath.Join(c.directory, name))
		delete(c.have, name)
	}
}

func run(arguments []string) error {
	if len(arguments) < 3 {
		return errors.New("usage: follow ENDPOINT PATH DIRECTORY [SECRET-KEY-FILE SERVER-KEY-FILE]")
	}
	keys, err := towpath.ReadKeys(arguments[3:])
	if err != nil {
		return err
	}
	copied := copied{directory: arguments[2], cursor: "beginning", have: make(map[string]bool)}
	session := func(link *towpath.Link) error { return copied.follow(link, arguments[1]) }
	return towpath.Keep([]string{arguments[0]}, keys, session)
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}
